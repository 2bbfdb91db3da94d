"""Small networks that are quick to export, and one that has been exported."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.deploy import ExportedModel
from tests.support.exports import SHAPE, export_tiny
from tests.support.tiny_net import build_tiny


@pytest.fixture
def build():
    """The function that builds a tiny network from a seed."""
    return build_tiny


@pytest.fixture
def export():
    """The function that exports a network with this file's shape, operations and classes."""
    return export_tiny


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> ExportedModel:
    """A tiny network's export; tests that change files copy it first."""
    return export_tiny(build_tiny(), tmp_path_factory.mktemp("exported"))


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((8, *SHAPE), dtype=np.float32)
