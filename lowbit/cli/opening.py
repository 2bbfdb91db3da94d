"""What `eval` and `export` have in common: the model that the user points at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowbit.config import load_config, override_config
from lowbit.errors import LowbitError

if TYPE_CHECKING:
    from lowbit.training.trained_model import TrainedModel


def open_model(
    checkpoint: Path | None, config: Path | None, override: list[str] | None, pretrained: Path | None
) -> TrainedModel:
    """A checkpoint's model, or a config's with the weights given; a config replaces the checkpoint's own."""
    from lowbit.training.trained_model import open_checkpoint, open_weights

    if (checkpoint is None) == (pretrained is None):
        raise LowbitError("give either a checkpoint (or run folder), or -c CONFIG with --pretrained WEIGHTS")
    if pretrained is not None:
        if config is None:
            raise LowbitError("--pretrained needs -c CONFIG, which names the model")
        return open_weights(load_config(config, override or ()), pretrained)
    trained = open_checkpoint(checkpoint)
    trained_as = trained.config
    if config is not None:
        trained.config = load_config(config, override or ())
    elif override:
        trained.config = override_config(trained.config, override)
    if trained.config.Arch.name != trained_as.Arch.name:
        raise LowbitError(
            f"{trained.source} is a model of {trained_as.Arch.name}, not of {trained.config.Arch.name}; "
            "a checkpoint brings its own Arch"
        )
    return trained
