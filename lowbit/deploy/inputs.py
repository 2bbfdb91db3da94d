"""What a model is called with and what it answers: inputs by name, with an example of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from lowbit.errors import LowbitError
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

    @staticmethod
    def images(shape: tuple[int, int, int]) -> ModelInputs:
        """Random images, always the same."""
        numbers = np.random.default_rng(0).standard_normal((_IMAGES, *shape), dtype=np.float32)
        return ModelInputs(("x",), (numbers,))

    @property
    def batch(self) -> int:
        """How many samples the example has."""
        return len(self.examples[0])

    def specs(self) -> list[InputSpec]:
        """For programs that take batches of any size."""
        return [
            InputSpec([None, *example.shape[1:]], str(example.dtype), name)
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
