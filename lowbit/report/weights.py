"""Histograms of a run's weights with their grids, out of its last checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lowbit.errors import LowbitError
from lowbit.numerics.level_histogram import LevelHistogram
from lowbit.report.series import shorten


def weight_histograms(path: Path) -> tuple[dict[str, Any], str]:
    """By layer, and a line that says of which checkpoint, or why there are none.

    A model of the user's own that cannot be built here is no reason to have no report.
    """
    from lowbit.layers.weights_at_rest import layers_by_name, weight_histogram
    from lowbit.training.checkpoint import find_checkpoint
    from lowbit.training.trained_model import open_checkpoint

    found = find_checkpoint(path)
    if found is None:
        return {}, f"no histograms of the weights: {path} has no checkpoint"
    try:
        model = open_checkpoint(found).model
        layers = layers_by_name(model)
        return {name: histogram_values(weight_histogram(layer)) for name, layer in layers.items()}, (
            f"Weights are those of {found.name}."
        )
    except LowbitError as error:
        return {}, f"no histograms of the weights: {error}"


def histogram_values(found: LevelHistogram) -> dict[str, Any]:
    """A histogram as plain values, without what there is none of."""
    values = asdict(found) | {"dead": found.dead_levels}
    values |= {key: shorten(values[key], 5) for key in ("start", "width", "clipped")}
    del values["levels"]  # the picture shows them, and `dead` counts them
    return {key: value for key, value in values.items() if value is not None}
