"""Configs of tiny runs, and a way to train them in this process or in another one."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowbit.config import Config, validate
from lowbit.training import loop
from lowbit.training.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]


def tiny_values(folder: Path, **settings: Any) -> dict[str, Any]:
    """A run of TinyNet on digits; `settings` go into Global."""
    normalize = {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    return {
        "Global": {"output_dir": str(folder), "epochs": 2, "use_visualdl": False, **settings},
        "Arch": {"name": "tests.tiny_net:TinyNet", "class_num": 10},
        "Optimizer": {"lr": {"name": "Cosine", "learning_rate": 0.1}, "regularizer": {"coeff": 1e-4}},
        "DataLoader": {
            "Train": {
                "dataset": {
                    "name": "Digits",
                    "transform_ops": [{"RandomCropImage": {"size": 32, "padding": 4}}, normalize],
                },
                "sampler": {"batch_size": 128, "shuffle": True},
                "loader": {"num_workers": 2},
            },
            "Eval": {
                "dataset": {"name": "Digits", "split": "val", "transform_ops": [normalize]},
                "sampler": {"batch_size": 128},
                "loader": {"num_workers": 2},
            },
        },
    }


def tiny_config(folder: Path, **settings: Any) -> Config:
    return validate(tiny_values(folder, **settings), {}, "tiny")


def start_run(folder: Path, values: dict[str, Any], *, launcher: tuple[str, ...] = ()) -> subprocess.Popen:
    """`python -m lowbit train` on a config written into the folder, as a user would start it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(values))
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "lowbit", "train", "-c", str(config)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def weights_hash(checkpoint: Path) -> str:
    """One digest of all weights and optimizer state of a checkpoint."""
    read = read_checkpoint(checkpoint)
    digest = hashlib.sha256()
    for part in (read.model, read.optimizer):
        for name in sorted(part):
            digest.update(name.encode() + part[name].tobytes())
    return digest.hexdigest()


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


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in a run's metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]
