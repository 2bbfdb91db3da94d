"""A trained model out of a checkpoint, or out of a config and a weights file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import paddle

from lowbit.accel.process_settings import apply_amd_fix
from lowbit.config import Config, validate
from lowbit.config.transform_ops import TransformOp
from lowbit.errors import LowbitError
from lowbit.models import assign_weights, build_model, check_trusted, count_classes, read_weights
from lowbit.training.checkpoint import Checkpoint, find_checkpoint, find_fp32, read_checkpoint
from lowbit.training.quantization import prepare_as_saved


@dataclass
class TrainedModel:
    """A model with its weights, in evaluation mode, and what it was trained with."""

    model: paddle.nn.Layer
    config: Config
    classes: list[str]
    source: Path
    quantized: bool = False
    trust: bool | str = False  # see `check_trusted`

    @property
    def preprocessing(self) -> list[TransformOp]:
        """How an image is prepared for this model: as in its evaluation."""
        evaluation = self.config.DataLoader.Eval
        ops = list(evaluation.dataset.transform_ops if evaluation else self.config.Infer.transforms)
        if not ops:
            raise LowbitError(
                f"how images are prepared for {self.source} is not known: give "
                "DataLoader.Eval.dataset.transform_ops or Infer.transforms in the config"
            )
        return ops


def open_checkpoint(path: Path, config: Config | None = None, *, trust: bool | str = False) -> TrainedModel:
    """The model of a checkpoint; of a run folder the best one, or the latest where none was evaluated.

    `config` takes the place of the one in the checkpoint, but must be for the same model. Code of the user's
    own that the checkpoint names is imported only if `trust` is True or names it, or if `config` does.

    >>> open_checkpoint(Path("runs/digits")).classes  # doctest: +SKIP
    ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']
    """
    apply_amd_fix()
    found = find_checkpoint(path, name="best") or find_checkpoint(path)
    if found is None:
        raise LowbitError(
            f"{path}: no lowbit checkpoint there; give a run folder, a .lowbit file, "
            "or -c CONFIG and --pretrained WEIGHTS"
        )
    checkpoint = read_checkpoint(found)
    trust = config.Arch.name if config is not None else trust
    saved = config_of(checkpoint, found, trust=trust)
    if config is not None and config.Arch.name != saved.Arch.name:
        raise LowbitError(
            f"{found} is a model of {saved.Arch.name}, not of {config.Arch.name}; "
            "a checkpoint brings its own Arch"
        )
    model = build_model(saved.Arch.name, len(checkpoint.classes), **(config or saved).Arch.kwargs)
    prepare_as_saved(model, checkpoint.recipe, str(found), saved.Global.image_shape)
    assign_weights(model, checkpoint.model, source=found)
    model.eval()
    quantized = checkpoint.recipe is not None
    return TrainedModel(model, config or saved, checkpoint.classes, found, quantized, trust)


def open_baseline(trained: TrainedModel) -> TrainedModel | None:
    """The fp32 model that a quantized one was made from; None where its run has kept none.

    It has the quantized model's config, changes of the user's included, so that both see the same images.
    """
    found = find_fp32(trained.source) if trained.quantized else None
    if found is None:
        return None
    baseline = open_checkpoint(found, trust=trained.trust)
    baseline.config = trained.config
    return baseline


def config_of(checkpoint: Checkpoint, path: Path, *, trust: bool | str = False) -> Config:
    """The config in a checkpoint, whose model may be built: one of lowbit's, or one that the user trusts."""
    config = validate(checkpoint.config, {}, str(path))
    if config.Arch.name != checkpoint.model_name:
        raise LowbitError(f"{path} contradicts itself: its metadata names two models; use another checkpoint")
    check_trusted(config.Arch.name, path, trust=trust)
    return config


def open_weights(config: Config, path: Path) -> TrainedModel:
    """A config's model with the weights of a .pdparams or .safetensors file, which says how many classes.

    Where training left a checkpoint next to the weights, it says what the classes are called, what is
    quantized, and how images are prepared if the config does not.
    """
    apply_amd_fix()
    weights = read_weights(path)
    num_classes = config.num_classes
    if num_classes is None:
        sketch = build_model(config.Arch.name, 1000, **config.Arch.kwargs)
        num_classes = count_classes(sketch, weights) or 1000
    model = build_model(config.Arch.name, num_classes, **config.Arch.kwargs)
    classes, quantized = [str(index) for index in range(num_classes)], False
    if beside := find_checkpoint(path):
        trained_with = read_checkpoint(beside)
        saved = validate(trained_with.config, {}, str(beside))  # its images; the model is the config's
        prepare_as_saved(model, trained_with.recipe, str(beside), saved.Global.image_shape)
        quantized = trained_with.recipe is not None
        if len(trained_with.classes) == num_classes:
            classes = trained_with.classes
        if config.DataLoader.Eval is None:
            config = config.model_copy(update={"DataLoader": saved.DataLoader})
    assign_weights(model, weights, source=path)
    model.eval()
    return TrainedModel(model, config, classes, path, quantized, trust=config.Arch.name)
