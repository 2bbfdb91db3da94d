"""Losses: cross entropy with label smoothing, and distillation from a teacher."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle.nn import Layer

from lowbit.accel.convolutions import rounding_convolutions
from lowbit.config import Config
from lowbit.config.schema import CrossEntropy, DistillationSection
from lowbit.data import Batch
from lowbit.errors import LowbitError
from lowbit.models import build_model, load_weights
from lowbit.nn.quant_layers import has_quantized_layers
from lowbit.ptq.blocks import find_blocks
from lowbit.ptq.distillation import layer_outputs, relative_error
from lowbit.ptq.learned_rounding import unquantized
from lowbit.training.checkpoint import SUFFIX
from lowbit.training.trained_model import open_checkpoint

PARTS = ("ce", "kl")  # of a loss that a teacher has a share of


def cross_entropy(section: CrossEntropy, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """The mean loss of a batch. `epsilon` spreads that share of the target evenly over all classes."""
    if not section.epsilon:
        loss = F.cross_entropy(logits, labels)
    else:
        # -Σ target·log p, with the target's even share taken as a mean: no one-hot matrix is built.
        log_likelihood = F.log_softmax(logits)
        own = F.nll_loss(log_likelihood, labels)
        loss = (1 - section.epsilon) * own - section.epsilon * log_likelihood.mean()
    return loss if section.weight == 1 else section.weight * loss


AUXILIARY_WEIGHT = 0.3  # of the other classifiers' losses, as in GoogLeNet's paper and in PaddleClas


def split_outputs(outputs: Any) -> tuple[paddle.Tensor, list[paddle.Tensor]]:
    """A network's logits, and those of auxiliary classifiers, which some networks return in training.

    Several tensors are a tuple or list whose first is the logits and whose others are of the same shape;
    None means a classifier that is switched off.

    >>> logits, auxiliary = split_outputs([paddle.ones([2, 10]), paddle.ones([2, 10])])
    >>> len(auxiliary)
    1
    """
    if isinstance(outputs, paddle.Tensor):
        return outputs, []
    parts = [part for part in outputs if part is not None] if isinstance(outputs, list | tuple) else []
    if not parts or not all(isinstance(part, paddle.Tensor) for part in parts):
        raise LowbitError(
            f"forward must return one tensor of logits, or several of one shape; it returns a "
            f"{type(outputs).__name__}"
        )
    shapes = [list(part.shape) for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise LowbitError(f"forward returns tensors {shapes}: auxiliary logits must be like the first")
    return parts[0], parts[1:]


def cross_entropy_of_outputs(
    outputs: Any, labels: paddle.Tensor, section: CrossEntropy | None = None
) -> paddle.Tensor:
    """`cross_entropy` of whatever a network returns in training; auxiliary classifiers count 0.3 each."""
    section = section or CrossEntropy()
    logits, auxiliary = split_outputs(outputs)
    loss = cross_entropy(section, logits, labels)
    for one in auxiliary:
        loss = loss + AUXILIARY_WEIGHT * cross_entropy(section, one, labels)
    return loss


def mixed_cross_entropy(
    section: CrossEntropy,
    logits: paddle.Tensor,
    labels: paddle.Tensor,
    others: paddle.Tensor,
    shares: paddle.Tensor,
) -> paddle.Tensor:
    """Cross entropy with targets of two classes: `shares` of `labels`, the rest of `others`.

    The loss is linear in the target, so it is the mean of two losses; no soft target is built.
    """
    log_likelihood = F.log_softmax(logits)
    own = F.nll_loss(log_likelihood, labels, reduction="none")
    other = F.nll_loss(log_likelihood, others, reduction="none")
    loss = (shares * own + (1 - shares) * other).mean()
    if section.epsilon:
        loss = (1 - section.epsilon) * loss - section.epsilon * log_likelihood.mean()
    return loss if section.weight == 1 else section.weight * loss


def batch_loss(section: CrossEntropy, heads: list[paddle.Tensor], batch: Batch) -> paddle.Tensor:
    """The training loss of a batch: of the network's logits, and 0.3 of those of auxiliary classifiers."""
    labels = paddle.to_tensor(batch.labels)
    mixed: tuple[paddle.Tensor, ...] = ()
    if batch.other_labels is not None:
        mixed = (paddle.to_tensor(batch.other_labels), paddle.to_tensor(batch.shares))

    def of(logits: paddle.Tensor) -> paddle.Tensor:
        if mixed:
            return mixed_cross_entropy(section, logits, labels, *mixed)
        return cross_entropy(section, logits, labels)

    loss = of(heads[0])
    for logits in heads[1:]:
        loss = loss + AUXILIARY_WEIGHT * of(logits)
    return loss


def divergence(logits: paddle.Tensor, teacher: paddle.Tensor, temperature: float) -> paddle.Tensor:
    """T²·KL(teacher ‖ student) of softmax(logits / T), the mean of a batch.

    T² keeps the size of the gradient where a higher temperature makes the answers softer.

    >>> logits = paddle.to_tensor([[1.0, 2.0]])
    >>> divergence(logits, logits, 4.0).item()
    0.0
    """
    student, teacher = F.log_softmax(logits / temperature), F.log_softmax(teacher / temperature)
    return (teacher.exp() * (teacher - student)).sum(axis=1).mean() * temperature**2


def distilled(
    section: DistillationSection, ce: paddle.Tensor, logits: paddle.Tensor, teacher: paddle.Tensor
) -> tuple[paddle.Tensor, dict[str, float]]:
    """(1 - weight)·cross entropy + weight·T²·KL(teacher ‖ student), and both of them by name."""
    kl = divergence(logits, teacher, section.temperature)
    parts = dict(zip(PARTS, (float(ce), float(kl)), strict=True))
    return (1 - section.weight) * ce + section.weight * kl, parts


# Knowledge distillation: the teacher is a trained model whose weights do not change.


@dataclass(frozen=True)
class Teacher:
    """A model in evaluation mode and fp32, whatever the student computes in; `digest` is of its weights."""

    model: Layer
    digest: str
    source: str

    @paddle.no_grad()
    def logits(self, images: paddle.Tensor) -> paddle.Tensor:
        """Its answers to a batch, without a gradient."""
        with nullcontext() if self.is_quantized else rounding_convolutions():
            return self.model(images).astype("float32")

    @cached_property
    def is_quantized(self) -> bool:
        """Whether sums of integers in it must be exact."""
        return has_quantized_layers(self.model)


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


@dataclass(frozen=True)
class Features:
    """Layers of a quantized student, by name, whose outputs shall be those of the same layers of its teacher.

    A layer's error then reaches its weights directly, not only through all layers behind it, so that networks
    of 2 and 3 bits learn in fewer epochs.
    """

    student: Layer
    teacher: Layer
    names: tuple[str, ...]

    @contextmanager
    def compared(self) -> Iterator[Callable[[], paddle.Tensor]]:
        """Run both networks within it; the function then gives the mean relative squared error."""
        with (
            layer_outputs(self.teacher, self.names) as wanted,
            layer_outputs(self.student, self.names) as found,
        ):
            yield lambda: self._error(found, wanted)

    def _error(self, found: dict[str, paddle.Tensor], wanted: dict[str, paddle.Tensor]) -> paddle.Tensor:
        errors = []
        for name in self.names:
            if name not in found or name not in wanted:
                raise LowbitError(
                    f"{name} did not run in this step, so that its output cannot be compared: leave out "
                    "Distillation.feature_weight for a network that skips layers in training"
                )
            y, target = found[name], wanted[name]
            if y.shape != target.shape:
                raise LowbitError(
                    f"{name} gives {list(y.shape)} in the student and {list(target.shape)} in the teacher: "
                    "Distillation.feature_weight needs a teacher of the same network (or leave it out)"
                )
            errors.append(relative_error(y.astype("float32"), target.astype("float32")))
        return paddle.add_n(errors) / len(errors)


def shared_features(student: Layer, teacher: Teacher, example: paddle.Tensor) -> Features:
    """Compare the outputs of the blocks of a quantized student with those of its teacher.

    Blocks are those of `lowbit.ptq.blocks.find_blocks`; the last one gives the answers, which are compared
    anyway.
    """
    with unquantized(student):
        names = tuple(block.modules[-1] for block in find_blocks(student, example).blocks[:-1])
    if not names:
        raise LowbitError(
            "Distillation.feature_weight compares the outputs of quantized blocks, and the network has none "
            "before its last layer: give a recipe, or leave feature_weight out"
        )
    known = {name for name, _ in teacher.model.named_sublayers(include_self=True)}
    if missing := [name for name in names if name not in known]:
        raise LowbitError(
            f"Distillation.feature_weight needs a teacher of the same network, and {teacher.source} has no "
            f"layer {missing[0]}: use teacher fp32, or leave feature_weight out"
        )
    return Features(student, teacher.model, names)


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
