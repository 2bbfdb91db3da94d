"""Fixtures for all tests, and hypothesis without deadlines: a busy machine must not fail a test."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from lowbit.accel.process_settings import SETTING
from lowbit.kernels import library
from tests.support.tiny_net import TinyNet, build_tiny

pytest_plugins = ["tests.support.chains", "tests.support.commands"]

hypothesis.settings.register_profile("lowbit", deadline=None)
hypothesis.settings.load_profile("lowbit")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernels", type=Path, help="a library to test with; see kernels/sanitized.py")


def pytest_configure(config: pytest.Config) -> None:
    if chosen := config.getoption("--kernels"):
        library.LIBRARY = chosen
        assert library.kernels(), library.why_missing()


@pytest.fixture
def tiny() -> TinyNet:
    return build_tiny()


@pytest.fixture(params=["this machine", "amd-avx2", "intel-vnni", "intel-amx"])
def processor(request, monkeypatch) -> Iterator[str]:
    """The test runs once per processor, with its decisions and kernels, where this machine can run them."""
    from tests.support.processors import computing_as

    with computing_as(request.param, monkeypatch):
        yield request.param


@pytest.fixture(autouse=True)
def _amd_fix_as_it_was() -> Iterator[None]:
    """Training on AMD sets a variable of the whole process; other tests start from the shell's."""
    before = os.environ.get(SETTING)
    yield
    os.environ.pop(SETTING, None)
    if before is not None:
        os.environ[SETTING] = before


@pytest.fixture(autouse=True)
def export_times(monkeypatch) -> dict[str, float]:
    """Exports are not timed in tests, but take these seconds: no file may depend on the clock."""
    seconds = {"fp32": 0.002, "quantized": 0.001}

    def instead(sides, **_options):
        for run in sides.values():
            run()
        return {name: [seconds[name]] * 3 for name in sides}

    monkeypatch.setattr("lowbit.deploy.gains.time_in_turns", instead)
    return seconds


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command takes over lowbit's logger for its whole process; here many share one."""
    log = logging.getLogger("lowbit")
    before = log.handlers, log.propagate
    yield
    log.handlers, log.propagate = before
