"""Networks and data of a user's own."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((40, 3, 8, 8), dtype=np.float32)


@pytest.fixture
def labels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 4, 40)
