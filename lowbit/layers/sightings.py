"""What calibration sees of one operand, batch by batch, and what a quantizer starts from after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import paddle
from paddle import Tensor

from lowbit.layers.across_ranks import largest_across_ranks, mean_across_ranks
from lowbit.numerics import Calibrated, Grid, lsq_initial_step, pact_initial_alpha, parse_grid
from lowbit.numerics.histogram_observers import Sensitivity
from lowbit.recipe.spec import TensorSpec

_ENOUGH = 1 << 17  # values: the search for the best bound reads them up to 50 times


class Sightings:
    """The means over the finite batches of a range, of LSQ's first step and of PACT's first bound.

    With `sign: auto` the values are measured on the unsigned grid until a negative one comes; then what was
    measured before is dropped, and the signed grid is used.
    """

    def __init__(
        self,
        spec: TensorSpec,
        axes_of: Callable[[Tensor], Sequence[int]],
        *,
        wants_alpha: bool,
        across_ranks: bool,
    ) -> None:
        self.batches = 0
        self.negative = False
        self.wants_alpha = wants_alpha
        self._spec, self._axes_of, self._across_ranks = spec, axes_of, across_ranks
        self._means: dict[str, Calibrated] = {}
        self._sensitivity = Sensitivity() if spec.observer.name == "sensitivity" else None
        self._waiting: list[Tensor] = []  # what was seen of this batch, until its gradients come

    @property
    def wants_gradients(self) -> bool:
        """Whether `weigh` shall be called with the gradients of what was seen."""
        return self._sensitivity is not None

    def range(self) -> Tensor:
        """The range to start from, fp32."""
        if self._sensitivity is None:
            return self.mean("range")
        counts = paddle.to_tensor(self._sensitivity.counts)
        self._sensitivity.counts = self._mean(counts).numpy()
        return paddle.full([1], self._sensitivity.range(highest=self._grid().highest), "float32")

    def mean(self, name: str) -> Tensor:
        """The mean of `range`, `step` or `alpha`, fp32."""
        return self._means[name].range()

    def see(self, x: Tensor) -> Tensor:
        """Take in a batch, unless a value of it is not finite; returns what the layer shall go on with."""
        with paddle.no_grad():
            is_finite = self._take_in(x.detach())
        if not (is_finite and self.wants_gradients):
            return x
        # The layer's own: of what others make of the same values, a skip connection say, it knows nothing.
        own = paddle.assign(x)
        own.stop_gradient = False
        own.retain_grads()
        self._waiting.append(own)
        return own

    def take_waiting(self) -> list[Tensor]:
        """The tensors that `see` gave and whose gradients have not come yet."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def weigh(self, x: Tensor, gradient: Tensor | None) -> None:
        """Take in how much the answers depend on values that were seen; None: not at all."""
        if gradient is not None and bool(paddle.isfinite(gradient).all()):
            self._sensitivity.add(x.numpy(), gradient.numpy())

    def _take_in(self, x: Tensor) -> bool:
        # In one number, so that all processes leave out the same batches: Inf where one is not finite.
        lowest = self._largest(
            paddle.where(paddle.isfinite(x).all(), -x.min(), paddle.full([], float("inf")))
        )
        if not bool(paddle.isfinite(lowest)):
            return False
        self.batches += 1
        if self._spec.sign == "auto" and not self.negative and bool(lowest > 0):
            self.negative = True
            self._means.clear()
        grid, axes = self._grid(), self._axes_of(x)
        if self._spec.scaling.name == "learned":
            self._enter("step", self._mean(initial_step(self._spec, x, grid, axes)))
        elif self._sensitivity is not None:
            self._sensitivity.widen(float(self._largest(x.abs().max().cast("float32"))))
        elif self._spec.keeps_scales:
            self._enter("range", self._largest(self._spec.observer.range(x, grid, axes)))
        if self.wants_alpha:
            self._enter("alpha", self._mean(initial_alpha(x, grid, axes)))
        return True

    def _grid(self) -> Grid:
        auto = self._spec.sign == "auto"
        return parse_grid(f"uint{self._spec.grid.bits}") if auto and not self.negative else self._spec.grid

    def _enter(self, name: str, value: Tensor) -> None:
        self._means.setdefault(name, Calibrated()).update(value)

    def _largest(self, x: Tensor) -> Tensor:
        return largest_across_ranks(x) if self._across_ranks else x

    def _mean(self, x: Tensor) -> Tensor:
        return mean_across_ranks(x) if self._across_ranks else x


def initial_alpha(x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """Where PACT's bound starts; one for a whole large tensor is found from every n-th value of it."""
    x = x.detach()
    stride = x.size // _ENOUGH
    if len(axes) == x.ndim and stride > 1:
        # Odd, so that it does not fall on the same columns of an image every time.
        sample = x.flatten()[:: stride | 1].contiguous()  # the C++ kernel reads no other memory
        # A value outside the sample that is not finite shall be seen, too.
        start = pact_initial_alpha(sample, grid, (0,)).reshape([1] * x.ndim)
        return paddle.where(paddle.isfinite(x).all(), start, paddle.full_like(start, float("nan")))
    return pact_initial_alpha(x, grid, axes)


def initial_step(spec: TensorSpec, x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """Where a learned step starts: LSQ's own value, or the scale of an observer other than minmax."""
    if spec.observer.name == "minmax":
        return lsq_initial_step(x, grid, axes)
    return spec.observer(x.detach(), grid, axes)
