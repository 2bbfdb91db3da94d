"""Configs of tiny runs, and a way to train them in this process or in another one."""

from __future__ import annotations

import os
import signal

import pytest

from lowbit.config import Config
from lowbit.training import loop
from tests.support.runs import tiny_config


@pytest.fixture
def config(tmp_path) -> Config:
    return tiny_config(tmp_path / "run")


@pytest.fixture
def one_step(monkeypatch):
    """Every run is told to stop after one step, as by Ctrl-C or a scheduler."""

    class OneStep(loop.TrainingStep):
        def __call__(self, batch, learning_rate):
            result = super().__call__(batch, learning_rate)
            os.kill(os.getpid(), signal.SIGTERM)
            return result

    monkeypatch.setattr(loop, "TrainingStep", OneStep)
