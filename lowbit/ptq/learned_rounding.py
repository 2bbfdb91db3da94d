"""Weights that learn to be rounded up or down (AdaRound), inputs with learned steps and drops (QDrop)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.kernels.quantization import Draw
from lowbit.nn.quantizer import Quantizer
from lowbit.ptq.fused_ops import drop_quantize

# The sigmoid is stretched beyond 0 and 1 and clipped, so that it gets there with a gradient on the way.
_LOW, _HIGH = -0.1, 1.1


def parameter(value: np.ndarray) -> Tensor:
    """A parameter for an optimizer, which belongs to no layer."""
    value = np.asarray(value, np.float32)
    made = paddle.create_parameter(list(value.shape), "float32")
    made.set_value(value)
    return made


def quantizers_of(module: nn.Layer) -> Iterator[tuple[nn.Layer, str, Quantizer]]:
    """Every quantizer inside of a module, with the layer that holds it and the attribute."""
    for owner in module.sublayers(include_self=True):
        for name, child in owner.named_children():
            if isinstance(child, Quantizer) and child.spec.grid.is_integer:
                yield owner, name, child


def weight_scale(quantizer: Quantizer) -> Tensor:
    """The scale of a weight's quantizer, which must be one that stays."""
    scale = quantizer.scale()
    if scale is None:
        raise LowbitError(
            f'the weight of layer "{quantizer.layer_name}" chooses its scale in every call, so that learned '
            "rounding would not last: give forward.weight scaling: fixed in the recipe"
        )
    return scale


@contextmanager
def unquantized(model: nn.Layer) -> Iterator[None]:
    """Within it no quantizer of the model does anything, calibrated or not."""
    with ExitStack() as undo:
        for owner, name, _ in list(quantizers_of(model)):
            # An attribute of the object hides the sublayer of that name, which stays where it is.
            object.__setattr__(owner, name, lambda x: x)
            undo.callback(object.__delattr__, owner, name)
        yield


class LearnedRounding:
    """A weight between the two integers around it: floor(w / scale) + h, where h in [0, 1] is learned.

    The scale stays. `hard` is the weight in the end, exactly on its grid: rounding it to nearest gives the
    integers that were learned, so that nobody else has to know of them.
    """

    def __init__(self, weight: Tensor, quantizer: Quantizer) -> None:
        scale = weight_scale(quantizer)
        grid = quantizer.grid()
        self.lowest, self.highest = float(grid.lowest), float(grid.highest)
        with paddle.no_grad():
            self.scale = scale.detach().clone()
            quotient = weight.detach() / self.scale
            self.floor = paddle.floor(quotient)
            rest = quotient - self.floor
            # Outside of the grid only the nearest integer is there.
            inside = (quotient > self.lowest) & (quotient < self.highest)
            rest = paddle.where(inside, rest, (quotient >= self.highest).cast("float32"))
            self.floor = paddle.clip(self.floor, self.lowest, self.highest - 1)
            first = paddle.log((rest - _LOW) / (_HIGH - rest))
        self.value = parameter(first.numpy())

    def share(self) -> Tensor:
        """h: 0 is down, 1 is up."""
        return paddle.clip(nn.functional.sigmoid(self.value) * (_HIGH - _LOW) + _LOW, 0.0, 1.0)

    def soft(self, share: Tensor) -> Tensor:
        """The weight while it is learned."""
        return (self.floor + share) * self.scale

    def integers(self) -> Tensor:
        """The integers of the end."""
        return self.floor + (self.value.detach() >= 0).cast("float32")

    def hard(self) -> Tensor:
        """The weight in the end."""
        return self.integers() * self.scale


def undecided(share: Tensor, power: float) -> Tensor:
    """The sum of 1 - |2h - 1|^power: 0 where all weights are up or down; the smaller the power the steeper.

    >>> undecided(paddle.to_tensor([0.0, 0.5, 1.0]), 2.0).item()
    1.0
    """
    return (1 - (2 * share - 1).abs() ** power).sum()


class LearnedStep:
    """A quantizer's stand-in while a block is trained: its step is learned, some values stay as they are."""

    def __init__(self, quantizer: Quantizer, drop: float, seed: int, *, learns: bool) -> None:
        # PACT's bound and a scale that is chosen in every call stay the quantizer's own.
        scale = None if quantizer.alpha is not None else quantizer.scale()
        self.quantizer = quantizer
        self._grid = quantizer.grid()
        self._first = None if scale is None else scale.detach().clone()
        self.value = parameter(np.ones(1 if scale is None else scale.shape, np.float32))  # times the first
        self.value.stop_gradient = not learns or scale is None
        self._drop, self._seed, self._calls = drop, seed, 0

    def __call__(self, x: Tensor) -> Tensor:
        if self._first is None:
            return self.quantizer(x)
        self._calls += 1
        draw = Draw(self._seed, self._calls, 0)
        return drop_quantize(x, self._first * self.value, self._grid, self._drop, draw)

    def finish(self) -> None:
        """Let the quantizer have the step that was learned."""
        if not self.value.stop_gradient:
            self.quantizer.set_scale(self._first * self.value.detach())
