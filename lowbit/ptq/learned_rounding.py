"""Weights that learn to be rounded up or down (AdaRound) or to move, inputs with learned steps and drops.

The operators that take most of a block's training run in one pass each; plain operators are their twins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.kernels.quantization import Draw, Layout, quantize_kernels
from lowbit.nn.quantizer import Quantizer
from lowbit.numerics import Grid, lsq_fake_quantize, parse_grid
from lowbit.numerics import fused as kernel_calls
from lowbit.numerics.fused import new_tensor
from lowbit.numerics.rounding import RANDOM_BITS, random_integers
from lowbit.numerics.scale import at_least_smallest


def drop_quantize(x: Tensor, step: Tensor, grid: Grid, drop: float, draw: Draw) -> Tensor:
    """`x` on the grid with the learned `step`, but for a random share `drop` of the values, which stay.

    Which ones is a function of the draw and of their places. The gradients are LSQ's, but not scaled to the
    pace of the weights: Adam does not depend on it.

    >>> step = paddle.to_tensor([0.5], stop_gradient=False)
    >>> drop_quantize(paddle.to_tensor([0.6, -9.0]), step, parse_grid("int4"), 0.0, Draw(0, 0, 0)).tolist()
    [0.5, -4.0]
    """
    threshold = round(drop * (1 << RANDOM_BITS))
    seen_as = kernel_calls.layout(x, step)
    if seen_as is None or x.size >= 1 << 32:
        return _drop_quantize_twin(x, step, grid, threshold, draw)
    return _DropQuantize.apply(x, step, grid, threshold, draw, seen_as)


def _drop_quantize_twin(x: Tensor, step: Tensor, grid: Grid, threshold: int, draw: Draw) -> Tensor:
    stays = random_integers(x.size, seed=draw.seed, step=draw.step, layer=draw.layer) < threshold
    on_grid = lsq_fake_quantize(x, step, grid, elements=1)
    return paddle.where(paddle.to_tensor(stays.reshape(x.shape)), x, on_grid)


class _DropQuantize(PyLayer):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, step: Tensor, grid: Grid, threshold: int, draw: Draw, seen_as: Layout
    ) -> Tensor:
        used = at_least_smallest(step.detach())
        ctx.save_for_backward(x, used)
        ctx.rest = grid, threshold, draw, seen_as
        ctx.learning = not x.stop_gradient, not step.stop_gradient
        y = new_tensor(x.shape)
        quantize_kernels().drop_quantize(
            x.data_ptr(),
            y.data_ptr(),
            used.data_ptr(),
            seen_as,
            kernel_calls.levels(grid),
            draw,
            threshold,
        )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, step = ctx.saved_tensor()
        grid, threshold, draw, seen_as = ctx.rest
        dy = dy.contiguous()
        dx, dstep = new_tensor(x.shape), new_tensor(step.shape)
        quantize_kernels().drop_lsq_grad(
            x.data_ptr(),
            dy.data_ptr(),
            dx.data_ptr(),
            step.data_ptr(),
            dstep.data_ptr(),
            seen_as,
            kernel_calls.levels(grid),
            draw,
            threshold,
        )
        return dx if ctx.learning[0] else None, dstep if ctx.learning[1] else None


def shift_channels(x: Tensor, shift: Tensor, axis: int) -> Tensor:
    """`x` with a number added to every channel, the channels along `axis`.

    >>> shift_channels(paddle.zeros([1, 2, 2]), paddle.to_tensor([1.0, 2.0]), 1).tolist()
    [[[1.0, 1.0], [2.0, 2.0]]]
    """
    shape = [-1] + [1] * (x.ndim - 1 - axis % x.ndim)
    along = shift.reshape(shape)
    seen_as = kernel_calls.layout(x, along)
    return x + along if seen_as is None else _ShiftChannels.apply(x, shift, seen_as)


class _ShiftChannels(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, seen_as: Layout) -> Tensor:
        ctx.seen_as, ctx.shape = seen_as, shift.shape
        ctx.learning = not x.stop_gradient, not shift.stop_gradient
        y = new_tensor(x.shape)
        quantize_kernels().shift_channels(x.data_ptr(), y.data_ptr(), shift.data_ptr(), seen_as)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        dy = dy.contiguous()
        total = new_tensor(ctx.shape)
        quantize_kernels().channel_sums(dy.data_ptr(), total.data_ptr(), ctx.seen_as)
        # A copy, since Paddle adds further gradients to what is returned, in place.
        return dy.clone() if ctx.learning[0] else None, total if ctx.learning[1] else None


# The sigmoid is stretched beyond 0 and 1 and clipped, so that it gets there with a gradient on the way.
_LOW, _HIGH = -0.1, 1.1
_DECIDED = 0.95  # where weights start that are likely to be rounded up


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


class _Identity:
    """What stands in a quantizer's place inside `unquantized`."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def grid(self) -> Grid:
        return parse_grid("full")


@contextmanager
def unquantized(model: nn.Layer, *, weights: bool = True) -> Iterator[None]:
    """Within it no quantizer of the model does anything, calibrated or not.

    With `weights=False`, weights stay quantized.
    """
    with ExitStack() as undo:
        for owner, name, quantizer in list(quantizers_of(model)):
            if weights or quantizer.role != "weight":
                undo.enter_context(hidden(owner, name, _Identity()))
        yield


@contextmanager
def hidden(owner: nn.Layer, name: str, value: object) -> Iterator[None]:
    """Within it a sublayer or method of the owner is hidden by `value`; afterwards it is as it was before."""
    missing = object()
    before = vars(owner).get(name, missing)
    # An attribute of the object comes before the sublayer or method of that name, which stays where it is.
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        object.__delattr__(owner, name)
        if before is not missing:
            object.__setattr__(owner, name, before)


class LearnedRounding:
    """A weight between the two integers around it: floor(w / scale) + h, where h in [0, 1] is learned.

    The scale stays. `hard` is the weight in the end, exactly on its grid: rounding it to nearest gives the
    integers that were learned, and other code needs no special case. `compensated` weights are meant to be
    rounded to nearest: h starts near 0 or 1.
    """

    def __init__(self, weight: Tensor, quantizer: Quantizer, *, compensated: bool) -> None:
        scale = weight_scale(quantizer)
        grid = quantizer.grid()
        self.lowest, self.highest = float(grid.lowest), float(grid.highest)
        with paddle.no_grad():
            self.scale = scale.detach().clone()
            quotient = weight.detach() / self.scale
            self.floor = paddle.floor(quotient)
            rest = quotient - self.floor
            if compensated:
                rest = paddle.where(rest >= 0.5, _DECIDED, 1 - _DECIDED)
            # Outside of the grid only the nearest integer is there.
            inside = (quotient > self.lowest) & (quotient < self.highest)
            rest = paddle.where(inside, rest, (quotient >= self.highest).cast("float32"))
            self.floor = paddle.clip(self.floor, self.lowest, self.highest - 1)
            first = paddle.log((rest - _LOW) / (_HIGH - rest))
        self.value = parameter(first.numpy())

    def share(self) -> Tensor:
        """h: 0 is down, 1 is up."""
        return paddle.clip(nn.functional.sigmoid(self.value) * (_HIGH - _LOW) + _LOW, 0.0, 1.0)

    def learning(self) -> tuple[Tensor, Tensor]:
        """The weight while it is learned, and h."""
        share = self.share()
        return (self.floor + share) * self.scale, share

    def integers(self) -> Tensor:
        """The integers of the end."""
        return self.floor + (self.value.detach() >= 0).cast("float32")

    def hard(self) -> Tensor:
        """The weight in the end."""
        return self.integers() * self.scale


class MovingWeight:
    """A weight that is rounded to nearest in every iteration and learns straight through the rounding.

    Unlike `LearnedRounding` it can move by several integers. `value` is the weight in units of its scale,
    which stays; the interface is that of `LearnedRounding`.
    """

    def __init__(self, weight: Tensor, quantizer: Quantizer) -> None:
        grid = quantizer.grid()
        self.lowest, self.highest = float(grid.lowest), float(grid.highest)
        with paddle.no_grad():
            self.scale = weight_scale(quantizer).detach().clone()
            self.value = parameter((weight.detach() / self.scale).numpy())
            self._first = self.value.detach().clone()

    def decay(self, share: float) -> None:
        """Go this share of the way back to the first value."""
        self.value.set_value(self.value + (self._first - self.value) * share)

    def learning(self) -> tuple[Tensor, None]:
        """The weight while it is learned: rounded, with the gradient of what was not clipped."""
        inside = paddle.clip(self.value, self.lowest, self.highest)
        return (inside + (paddle.round(inside) - inside).detach()) * self.scale, None

    def hard(self) -> Tensor:
        """The weight in the end."""
        return paddle.round(paddle.clip(self.value.detach(), self.lowest, self.highest)) * self.scale


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
        self._first: Any = None if scale is None else scale.detach().clone()
        self.value = parameter(np.ones(1 if scale is None else scale.shape, np.float32))  # times the first
        self.value.stop_gradient = not learns or scale is None
        self._drop, self._seed, self.calls = drop, seed, 0

    def __call__(self, x: Tensor) -> Tensor:
        if self._first is None:
            return self.quantizer(x)
        self.calls += 1
        draw = Draw(self._seed, self.calls, 0)
        return drop_quantize(x, self._first * self.value, self._grid, self._drop, draw)

    def finish(self) -> None:
        """Let the quantizer have the step that was learned."""
        if not self.value.stop_gradient:
            self.quantizer.set_scale(self._first * self.value.detach())
