"""Fixtures for all rooms."""

from __future__ import annotations

import pytest

from tests.tiny_net import TinyNet, build_tiny


@pytest.fixture
def tiny() -> TinyNet:
    return build_tiny()
