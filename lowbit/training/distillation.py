"""The teacher of knowledge distillation: a trained model that answers the same images, unchanging."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import paddle
from paddle.nn import Layer

from lowbit.config import Config
from lowbit.errors import LowbitError
from lowbit.models import build_model, load_weights
from lowbit.training.checkpoint import SUFFIX
from lowbit.training.trained_model import open_checkpoint


@dataclass(frozen=True)
class Teacher:
    """A model in evaluation mode and fp32, whatever the student computes in; `digest` is of its weights."""

    model: Layer
    digest: str
    source: str

    @paddle.no_grad()
    def logits(self, images: paddle.Tensor) -> paddle.Tensor:
        """Its answers to a batch, without a gradient."""
        return self.model(images).astype("float32")


def open_teacher(config: Config, fp32: Layer | None, classes: list[str]) -> Teacher | None:
    """The teacher that the config asks for; None without a `Distillation` section.

    `fp32` is the unquantized model that the run starts from. A run folder or a checkpoint brings its own
    model; a weights file is of `teacher_model`, or else of the model that is trained.
    """
    section = config.Distillation
    if section is None:
        return None
    if section.teacher == "fp32":
        if fp32 is None:
            raise LowbitError(
                "teacher fp32 is what the run starts from, but its classifier is new and knows nothing: "
                "train the fp32 model on these classes first, or name another teacher"
            )
        model = fp32
    elif (path := Path(section.teacher)).is_dir() or path.suffix == SUFFIX:
        trained = open_checkpoint(path, trust=section.teacher_model or config.Arch.name)
        if section.teacher_model not in (None, trained.config.Arch.name):
            raise LowbitError(
                f"{path} is a checkpoint of {trained.config.Arch.name}, not of {section.teacher_model}: "
                "leave out teacher_model"
            )
        _check_classes(trained.classes, classes, path)
        model = trained.model
    else:
        kwargs = config.Arch.kwargs if section.teacher_model is None else section.teacher_kwargs
        model = build_model(section.teacher_model or config.Arch.name, len(classes), **kwargs)
        load_weights(model, path)
    model.eval()
    for parameter in model.parameters():
        parameter.stop_gradient = True
    return Teacher(model, _digest(model), section.teacher)


def _check_classes(known: list[str], wanted: list[str], path: Path) -> None:
    unnamed = [str(index) for index in range(len(wanted))]
    if len(known) != len(wanted) or (known != wanted and unnamed not in (known, wanted)):
        raise LowbitError(
            f"the teacher {path} tells {len(known)} classes apart ({known[0]}, …), the data has "
            f"{len(wanted)} ({wanted[0]}, …): a teacher must know the same classes"
        )


def _digest(model: Layer) -> str:
    """SHA-256 of names and weights: a teacher that was moved is the same one, one that changed is not."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
