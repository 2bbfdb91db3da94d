"""State of scales: calibration statistics, running ranges, learned scales."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import ParamAttr, Tensor, nn
from paddle.regularizer import L2Decay

from lowbit.kernels.quantization import quantize_kernels
from lowbit.numerics import (
    Calibrated,
    Grid,
    Scaling,
    lsq_initial_step,
    lsq_plus_initial,
    pact_initial_alpha,
    parse_grid,
)
from lowbit.numerics.fused import is_plain_memory
from lowbit.numerics.histogram_observers import Sensitivity
from lowbit.numerics.observed import MovingScale
from lowbit.recipe.spec import TensorSpec


def largest_across_ranks(x: Tensor) -> Tensor:
    """The largest of every element over all processes; Inf where one of them is not finite."""
    if not _several():
        return x
    # A comparison with NaN would depend on which process comes first.
    x = paddle.where(paddle.isfinite(x), x, paddle.full_like(x, float("inf")))
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def mean_across_ranks(x: Tensor) -> Tensor:
    """The mean of every element over all processes."""
    if not _several():
        return x
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def of_first_rank(x: Tensor) -> Tensor:
    """What the first process has, which is what a checkpoint saves."""
    if not _several():
        return x
    copy = x.clone()
    dist.broadcast(copy, src=0)
    return copy


def _several() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


_INTEGERS = {paddle.int32: ctypes.c_int32, paddle.int64: ctypes.c_int64}


def first_integer(buffer: Tensor) -> int:
    """The value of a buffer of one integer; `Tensor.item` takes ten times as long, hundreds of times a step.

    >>> first_integer(paddle.full([1], 3, "int32"))
    3
    """
    if not buffer.place.is_cpu_place():
        return int(buffer.item())
    # Paddle's types take microseconds to hash and to compare.
    kind = ctypes.c_int32 if buffer.dtype is paddle.int32 else _INTEGERS[buffer.dtype]
    return kind.from_address(buffer.data_ptr()).value


# Calibration statistics of one operand, and the initial values made from them.


_ENOUGH = 1 << 17  # values: the search for the best bound reads them up to 50 times


class CalibrationStats:
    """The means over the finite batches of a range, of LSQ's first step and of PACT's first bound.

    With `sign: auto` the values are measured on the unsigned grid until a negative one comes; then what was
    measured before is dropped, and the signed grid is used.
    """

    def __init__(
        self,
        spec: TensorSpec,
        axes_of: Callable[[Tensor], Sequence[int]],
        *,
        grid: Grid,
        wants_alpha: bool,
        across_ranks: bool,
    ) -> None:
        self.batches = 0
        self.negative = False
        self.wants_alpha = wants_alpha
        self._spec, self._axes_of, self._across_ranks = spec, axes_of, across_ranks
        self._signed_grid = grid  # the spec's, with the bits in use
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
        """Add a batch, unless a value of it is not finite; returns the tensor to continue with."""
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
        """Add the gradients of the outputs with respect to the values seen; None means no dependence."""
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
        if self._spec.sign == "asymmetric":
            step, offset = lsq_plus_initial(x, grid.bits)
            self._enter("step", self._mean(step))
            self._enter("offset", self._mean(offset))
        elif self._spec.scaling.name == "learned":
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
        grid = self._signed_grid
        return parse_grid(f"uint{grid.bits}") if auto and not self.negative else grid

    def _enter(self, name: str, value: Tensor) -> None:
        self._means.setdefault(name, Calibrated()).update(value)

    def _largest(self, x: Tensor) -> Tensor:
        return largest_across_ranks(x) if self._across_ranks else x

    def _mean(self, x: Tensor) -> Tensor:
        return mean_across_ranks(x) if self._across_ranks else x


def initial_alpha(x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """The initial value of PACT's bound; for a large tensor, from every n-th value."""
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
    """The initial value of a learned step: LSQ's formula, or the scale of an observer other than minmax."""
    if spec.observer.name == "minmax":
        return lsq_initial_step(x, grid, axes)
    return spec.observer(x.detach(), grid, axes)


# Running ranges, as buffers in checkpoints and exports.


_COUNTS = ("entered", "left_out")


class RunningRange(nn.Layer):
    """A state of lowbit.numerics.scale whose arrays are buffers; `range` is what it comes to.

    Every update reads the buffers and writes them back: they are the only state, so `set_state_dict` and
    `deepcopy` need nothing more.

    >>> kept = RunningRange(parse_scaling("moving_average(0.5)"), [1])
    >>> kept.update(paddle.to_tensor([2.0])), kept.update(paddle.to_tensor([float("nan")]))
    (True, False)
    >>> kept.range.item(), kept.left_out.item()
    (2.0, 1)
    """

    def __init__(self, scaling: Scaling, shape: Sequence[int]) -> None:
        super().__init__()
        self._scaling = scaling
        example = scaling.new_state()
        example.update(paddle.zeros(list(shape)))
        self.register_buffer("range", paddle.zeros(list(shape)))
        for name, value in self._full_size(example.state_dict()).items():
            self.register_buffer(name, paddle.to_tensor(np.zeros_like(value)))

    @property
    def is_known(self) -> bool:
        """Whether a batch has entered."""
        return bool(first_integer(self._buffers["entered"]))

    def update(self, range_: Tensor) -> bool:
        """Add the ranges of a batch and return whether they are finite; others are counted and skipped."""
        return self._update(range_, self._saved())

    def moving_scale(self, alpha: Tensor | None, grid: Grid) -> MovingScale | None:
        """What enters a batch by its largest magnitude, clipped to PACT's `alpha`, and quantizes it.

        None for what `update` and plain operators have to do. Of one process, since several agree on
        a range first.
        """
        if self._scaling.name != "moving_average" or _several():
            return None
        if not paddle.in_dynamic_mode() or quantize_kernels() is None or not grid.has_every_integer:
            return None
        for tensor in (self._buffers["range"], alpha):
            if tensor is not None and (math.prod(tensor.shape) != 1 or not is_plain_memory(tensor)):
                return None
        return MovingScale(grid, self._scaling.parameter, self._buffers, alpha)

    def restart(self, range_: Tensor) -> bool:
        """As `update`, but everything from before is forgotten."""
        return self._update(range_, None)

    def forget(self) -> None:
        """As if no batch had entered."""
        self._buffers["entered"].set_value(np.zeros_like(self._buffers["entered"].numpy()))

    def _update(self, range_: Tensor, saved: dict[str, Any] | None) -> bool:
        state = self._scaling.new_state()
        if saved is not None:
            state.load_state_dict(saved)
        entered = state.update(range_.reshape(self._buffers["range"].shape))
        for name, value in self._full_size(state.state_dict()).items():
            self._buffers[name].set_value(value)
        if entered:
            self._buffers["range"].set_value(state.range())
        return entered

    def _saved(self) -> dict[str, Any]:
        entered = int(self._buffers["entered"].item())
        saved = {name: self._buffers[name].numpy() for name in self._buffers if name != "range"}
        if not entered:
            return {name: saved[name].item() for name in _COUNTS}
        if "batches" in saved:
            saved["batches"] = saved["batches"][:entered]
        return saved | {name: saved[name].item() for name in _COUNTS}

    def _full_size(self, state: dict[str, Any]) -> dict[str, np.ndarray]:
        """The arrays of a state; a window in its final length, since shapes in checkpoints must agree."""
        arrays = {name: np.atleast_1d(np.asarray(value)) for name, value in state.items()}
        if "batches" in arrays:
            window = np.zeros((int(self._scaling.parameter), *arrays["batches"].shape[1:]), np.float32)
            window[: len(arrays["batches"])] = arrays["batches"]
            arrays["batches"] = window
        return arrays


# Learned parameters of a quantizer (PACT's bound, LSQ's step), initialized once from data.


class LearnedScale(nn.Layer):
    """The parameter `value`, and the buffer `known`, which says whether it has got its first value.

    `known` is in the state_dict, so a resumed run does not start the value again. `learning_rate` multiplies
    that of the optimizer; `weight_decay` takes the place of the optimizer's own, None leaves that.

    >>> step = LearnedScale([1])
    >>> step.start(paddle.to_tensor([0.25]))
    True
    >>> step.is_known, step.value.item()
    (True, 0.25)
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        initial: float | None = None,
        learning_rate: float = 1.0,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__()
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.value = self.create_parameter(
            list(shape),
            attr=ParamAttr(
                learning_rate=learning_rate,
                regularizer=None if weight_decay is None else L2Decay(weight_decay),
            ),
            dtype="float32",
            default_initializer=nn.initializer.Constant(1.0 if initial is None else initial),
        )
        self.register_buffer("known", paddle.full([1], int(initial is not None), "int32"))

    @property
    def is_known(self) -> bool:
        """Whether the value is initialized, here or by a checkpoint."""
        return bool(first_integer(self._buffers["known"]))

    def forget(self) -> None:
        """Let it start anew from data."""
        self.known.set_value(np.zeros([1], np.int32))

    def start(self, value: Tensor) -> bool:
        """Initialize the value, unless it is not finite; returns whether it was set."""
        first = value.numpy().astype(np.float32)
        if not np.isfinite(first).all():
            return False
        self.value.set_value(first.reshape(self.value.shape))
        self.known.set_value(np.ones([1], np.int32))
        return True
