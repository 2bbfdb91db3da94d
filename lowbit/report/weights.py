"""Histograms of a run's weights with their grids, out of its last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowbit.errors import LowbitError
from lowbit.layers.weights_at_rest import layers_by_name, weight_histogram
from lowbit.training.checkpoint import find_checkpoint
from lowbit.training.trained_model import open_checkpoint


def weight_histograms(path: Path, *, trust: bool = False) -> tuple[dict[str, Any], str]:
    """Of a run's latest checkpoint, by layer; and, where there are none, the reason.

    A model of the user's own that cannot be built here is no reason to have no report.
    """
    found = find_checkpoint(path)
    if found is None:
        return {}, f"no histograms of the weights: {path} has no checkpoint"
    try:
        layers = layers_by_name(open_checkpoint(found, trust=trust).model)
        return {name: weight_histogram(layer).values() for name, layer in layers.items()}, ""
    except LowbitError as error:
        return {}, f"no histograms of the weights: {error}"
