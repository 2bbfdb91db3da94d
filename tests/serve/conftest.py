"""The server as a fixture."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.serving import running


@pytest.fixture
def serving() -> Callable[..., object]:
    return running
