"""Fixtures for all rooms."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowbit.kernels import library
from tests.tiny_net import TinyNet, build_tiny


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kernels", type=Path, help="a library to test with; see kernels/sanitized.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    if chosen := config.getoption("--kernels"):
        library.LIBRARY = chosen
        assert library.kernels(), library.why_missing()


@pytest.fixture
def tiny() -> TinyNet:
    return build_tiny()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command takes over lowbit's logger for its whole process; here many share one."""
    log = logging.getLogger("lowbit")
    before = log.handlers, log.propagate
    yield
    log.handlers, log.propagate = before
