"""A model as a Paddle inference program, compared with the model before it is put in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from lowbit.deploy.export import agrees, check_finite, drafting, put_in_place, save_static
from lowbit.errors import LowbitError
from lowbit.nn import eval_mode, frozen
from lowbit.nn.eval_mode import cause, failing_layer

_IMAGES = 3  # an odd number, so that a batch's size that became a constant shows


@dataclass(frozen=True)
class ModelInputs:
    """A model's inputs; each example is [N, …], with the same N.

    >>> ModelInputs.images((3, 8, 8)).specs()[0].shape
    (-1, 3, 8, 8)
    """

    names: tuple[str, ...]
    examples: tuple[np.ndarray[Any, Any], ...]
    any_size: bool = False  # images [N, C, H, W] of any height and width

    @staticmethod
    def images(shape: tuple[int, int, int], *, any_size: bool = False) -> ModelInputs:
        """Random images, always the same."""
        numbers = np.random.default_rng(0).standard_normal((_IMAGES, *shape), dtype=np.float32)
        return ModelInputs(("x",), (numbers,), any_size)

    @property
    def batch(self) -> int:
        """How many samples the example has."""
        return len(self.examples[0])

    def specs(self) -> list[InputSpec]:
        """For programs that take batches of any size."""
        return [
            InputSpec(
                [None, example.shape[1], None, None] if self.any_size else [None, *example.shape[1:]],
                str(example.dtype),
                name,
            )
            for name, example in zip(self.names, self.examples, strict=True)
        ]

    def first(self, count: int) -> list[np.ndarray[Any, Any]]:
        """The inputs of the first samples."""
        return [example[:count] for example in self.examples]


def numbers_of(outputs: Any) -> list[np.ndarray[Any, Any]]:
    """The tensors in whatever a model returns (a tensor, a tuple, a dict, nested), in a fixed order."""
    return [out.numpy() for out in paddle.utils.flatten(outputs) if isinstance(out, Tensor)]


def answers_of(
    model: nn.Layer, inputs: Sequence[np.ndarray[Any, Any]], model_name: str
) -> list[np.ndarray[Any, Any]]:
    """What the model answers; an input that does not fit is an error that names the layer."""
    try:
        answers = numbers_of(model(*map(paddle.to_tensor, inputs)))
    except Exception as error:  # the user's own forward may raise anything
        where = failing_layer(error, model)
        shapes = ", ".join(str(list(one.shape)) for one in inputs)
        raise LowbitError(
            f"{model_name} does not run on inputs {shapes}{f', in {where}' if where else ''}: {cause(error)}"
        ) from error
    if not answers:
        raise LowbitError(f"{model_name}: forward returns no tensor")
    return answers


_TOLERANCE = 1e-4  # of the largest output
_BATCH = 2


def save_program(
    model: nn.Layer,
    path: str,
    input_spec: Sequence[InputSpec | Tensor] | None,
    inputs: Sequence[Tensor] | None = None,
) -> None:
    """Write `path`.json and `path`.pdiparams; the model and the process stay as they are.

    The program is compared with the model on `inputs`; without them on random ones of the specified shapes.

    save_program(net, "served/model", [InputSpec([None, 3, 224, 224])])
    """
    specs = _checked_specs(input_spec)
    prefix = Path(path)
    if not prefix.name or str(path).endswith(os.sep) or prefix.is_dir():
        raise LowbitError(f"{path} is a folder: give the files' common beginning, such as {prefix / 'model'}")
    check_finite(model, type(model).__name__)
    inputs = _inputs(specs) if inputs is None else list(inputs)
    with drafting(prefix.parent, f"the model to {path}") as draft, eval_mode(model):
        expected = _run(model, inputs, specs) if inputs else None
        with frozen(model):
            save_static(model, draft / prefix.name, specs, lambda error: _untranslatable(error, model))
        if expected:
            _compare(model, draft / prefix.name, inputs, expected)
        put_in_place(draft, prefix.parent, sorted(file.name for file in draft.iterdir()))


def _checked_specs(given: Sequence[InputSpec | Tensor] | None) -> list[InputSpec]:
    example = "[paddle.static.InputSpec(shape=[None, 3, 224, 224], dtype='float32')]"
    if not isinstance(given, list | tuple) or not given:
        raise LowbitError(f"input_spec must be a list with one entry per input, such as {example}")
    for spec in given:
        if not isinstance(spec, InputSpec | Tensor):
            raise LowbitError(f"input_spec has {spec!r} in it, which is no InputSpec; write {example}")
    return [spec if isinstance(spec, InputSpec) else InputSpec.from_tensor(spec) for spec in given]


def _inputs(specs: list[InputSpec]) -> list[Tensor] | None:
    """Numbers of the specified shapes; None where more than the batch's size is open."""
    rng = np.random.default_rng(0)
    inputs = []
    for spec in specs:
        sizes = [None if size in (None, -1) else size for size in spec.shape]
        if None in sizes[1:]:
            return None
        shape = [_BATCH if size is None else size for size in sizes]
        inputs.append(paddle.to_tensor(rng.standard_normal(shape)).cast(spec.dtype))
    return inputs


def _run(model: nn.Layer, inputs: list[Tensor], specs: list[InputSpec]) -> list[np.ndarray]:
    try:
        return numbers_of(model(*inputs))
    except Exception as error:  # the user's own forward may raise anything
        where = failing_layer(error, model)
        shapes = ", ".join(str([None if s == -1 else s for s in spec.shape]) for spec in specs)
        raise LowbitError(
            f"{type(model).__name__} does not run on inputs of input_spec {shapes}"
            f"{f', in {where}' if where else ''}: {cause(error)}"
        ) from error


def _untranslatable(error: Exception, model: nn.Layer) -> LowbitError:
    return LowbitError(
        f"{type(model).__name__} cannot be saved: Paddle could not translate its forward into a program "
        f"for this input_spec: {cause(error)}"
    )


def _compare(model: nn.Layer, draft: Path, inputs: list[Tensor], expected: list[np.ndarray]) -> None:
    found = numbers_of(paddle.jit.load(str(draft))(*inputs))
    for ours, theirs in zip(expected, found, strict=True):
        if not agrees(theirs, ours, _TOLERANCE):
            raise LowbitError(
                f"{type(model).__name__} cannot be saved: the program answers differently from the model. "
                "forward probably computes a value in Python that became a constant; nothing was written"
            )
