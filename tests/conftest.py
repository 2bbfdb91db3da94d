"""Fixtures for all rooms."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.tiny_net import TinyNet, build_tiny


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
