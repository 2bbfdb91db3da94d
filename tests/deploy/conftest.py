"""Small networks that are quick to export, and one that has been exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from paddle import nn

from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage, ToCHWImage
from lowbit.deploy import ExportedModel, export_model
from tests.tiny_net import build_tiny

CLASSES = ["ant", "bee", "cat", "dog"]
SHAPE = (3, 16, 16)
OPS = [ResizeImage(resize_short=20), CropImage(size=16), NormalizeImage(), ToCHWImage()]


def export_tiny(model: nn.Layer, directory: Path, **changes) -> ExportedModel:
    options = {"model_name": "tiny", "image_shape": SHAPE, "transform_ops": OPS, "classes": CLASSES}
    return export_model(model, directory, **(options | changes))


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
