"""The model that the user points at: how it is opened, and what is exported and verified of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowbit.config import load_config, override_config
from lowbit.config.load import parse_override
from lowbit.errors import LowbitError

if TYPE_CHECKING:
    from lowbit.config.transform_ops import TransformOp
    from lowbit.deploy.verify.record import ToExport
    from lowbit.training.trained_model import TrainedModel


def open_model(
    checkpoint: Path | None,
    config: Path | None = None,
    override: list[str] | None = None,
    pretrained: Path | None = None,
    *,
    trust_code: bool = False,
) -> TrainedModel:
    """A checkpoint's model, or a config's with the weights given; a config replaces the checkpoint's own.

    The code of a network that only the checkpoint names is imported with `trust_code` alone; a config, or
    `-o Arch.name=…`, names it, too.
    """
    from lowbit.training.trained_model import open_checkpoint, open_weights

    if (checkpoint is None) == (pretrained is None):
        raise LowbitError("give either a checkpoint (or run folder), or -c CONFIG with --pretrained WEIGHTS")
    if pretrained is not None:
        if config is None:
            raise LowbitError("--pretrained needs -c CONFIG, which names the model")
        return open_weights(load_config(config, override or ()), pretrained)
    if config is not None:
        return open_checkpoint(checkpoint, load_config(config, override or ()))
    named = dict(parse_override(item) for item in override or ()).get("Arch.name")
    trained = open_checkpoint(checkpoint, trust=trust_code or str(named))
    if override:
        changed = override_config(trained.config, override)
        if changed.Arch != trained.config.Arch:
            raise LowbitError(f"{trained.source} brings its own Arch; leave out the overrides of it")
        trained.config = changed
    return trained


def to_export(
    trained: TrainedModel,
    *,
    image_shape: tuple[int, int, int] | None = None,
    transform_ops: list[TransformOp] | None = None,
) -> ToExport:
    """What export and verify need to know about a model; a shape and operations replace its config's."""
    from lowbit.deploy.verify.record import ToExport

    return ToExport(
        model=trained.model,
        source=trained.source if trained.source.is_file() else None,  # weights may be given without an ending
        model_name=trained.config.Arch.name,
        image_shape=image_shape or trained.config.Global.image_shape,
        transform_ops=transform_ops or trained.preprocessing,
        classes=trained.classes,
    )
