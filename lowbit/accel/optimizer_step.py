"""Momentum, Adam and AdamW: all large parameters updated in one call of lowbit's kernels, to Paddle's bits.

Paddle's `step()` runs as it is: it clips, regularizes, and takes the rate and decay of each parameter. Only
its last operator per parameter is replaced: the update is noted, and all that were noted are done together
before `step()` returns. What the kernels do not cover is left to Paddle's operator, and said once. So are
small parameters, silently: Paddle updates one in a few microseconds, and noting it takes as long.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, _C_ops, optimizer
from paddle.optimizer import Optimizer

from lowbit.accel.op_overrides import MethodPatch, OpOverrides
from lowbit.kernels.optimizer import AdamUpdate, MomentumUpdate, optimizer_kernels
from lowbit.numerics.exact import is_float32

_log = logging.getLogger("lowbit")
_lock = threading.Lock()
_HAS_DEVICES = paddle.is_compiled_with_cuda() or bool(paddle.device.get_all_custom_device_type())
_said: set[str] = set()
_SMALL = 1 << 16  # elements


@contextmanager
def fast_updates(*, wanted: bool = True) -> Iterator[None]:
    """Inside the `with`, if `wanted`, `step()` of Momentum, Adam and AdamW updates parameters in one call.

    On the CPU, in this thread, with the same bits as Paddle's. It is Paddle's alone where the kernels are
    missing, and for parameters other than contiguous fp32, sparse gradients, AMSGrad and `rescale_grad`.

    with fast_updates():
        optimizer.step()
    """
    if update_library(wanted=wanted) == "Paddle":
        yield
        return
    with _STEPS.open():
        yield


def update_library(*, wanted: bool) -> str:
    """What updates the parameters of Momentum, Adam and AdamW: "lowbit", or "Paddle" also on a GPU.

    >>> update_library(wanted=False)
    'Paddle'
    """
    usable = wanted and paddle.device.get_device() == "cpu" and optimizer_kernels() is not None
    return "lowbit" if usable else "Paddle"


def _step(original: Callable[..., None], self: Optimizer) -> None:
    """`step()` of Paddle's optimizer, its updates noted and done together."""
    if _local.updates is not None:
        return original(self)
    _local.updates = updates = _Updates()
    try:
        with _OVERRIDES.open():
            original(self)
    finally:  # after an error as well: Paddle's own would have been done one by one
        _local.updates = None
        updates.run()


_STEPS = MethodPatch((Optimizer, optimizer.Adam, optimizer.AdamW), "step", _step)


class _Updates:
    """Updates that are to be done together: none writes what another one reads or writes."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._momentum: list[MomentumUpdate] = []
        self._adam: list[AdamUpdate] = []
        self._kept: list[Tensor] = []  # their memory must not be freed before
        self._read: set[int] = set()
        self._written: set[int] = set()

    def add(self, update: MomentumUpdate | AdamUpdate, tensors: list[Tensor], written: int) -> None:
        """Note an update, which writes the first `written` of its tensors.

        It is done after those before it where it shares an allocation with one of them.
        """
        # The offset is that of a view in its allocation.
        allocations = [tensor.data_ptr() - tensor._offset() for tensor in tensors]
        ours, theirs = allocations[:written], allocations[written:]
        if not (self._written.isdisjoint(allocations) and self._read.isdisjoint(ours)):
            self.run()
        (self._momentum if isinstance(update, MomentumUpdate) else self._adam).append(update)
        self._kept += tensors
        self._written.update(ours)
        self._read.update(theirs)

    def run(self) -> None:
        """Do them."""
        if self._momentum:
            optimizer_kernels().momentum_step(self._momentum)
        if self._adam:
            optimizer_kernels().adam_step(self._adam)
        self._clear()


class _Local(threading.local):
    updates: _Updates | None = None  # of the step that this thread is in


_local = _Local()


def _momentum(*arguments: Any, **named: Any) -> tuple[Any, ...] | None:
    updates = _local.updates
    if updates is None or named or len(arguments) != 11 or _is_small(arguments[0]):
        return None
    parameter, gradient, velocity, rate, master, momentum, nesterov, decay_kind, decay, *_ = arguments
    tensors = [parameter, velocity, gradient, rate]
    reason = _why_not(tensors, gradient, master)
    if arguments[10] != 1:
        reason = "rescale_grad"
    elif reason is None and not _momentum_agrees():
        reason = "Paddle's other rounding"
    if reason is not None:
        _left_to_paddle("Momentum", reason)
        return None
    at, its_velocity, its_gradient, at_rate = [tensor.data_ptr() for tensor in tensors]
    settings = (math.prod(parameter.shape), momentum, decay, decay_kind == "l2_decay", nesterov)
    updates.add(MomentumUpdate(at, its_gradient, its_velocity, at_rate, *settings), tensors, written=2)
    return parameter, velocity, master


def _adam(*arguments: Any, **named: Any) -> tuple[Any, ...] | None:
    if len(arguments) != 18 or _is_small(arguments[0]):
        return None
    if named:
        return None
    return _adam_update("Adam", False, *arguments[:13], 0.0, *arguments[13:])


def _adamw(*arguments: Any, **named: Any) -> tuple[Any, ...] | None:
    # The other one is the ratio of rates, which Paddle refuses on a CPU.
    if len(arguments) != 21 or _is_small(arguments[0]) or arguments[13] != 1:
        return None
    state, decay, has_decay, settings = arguments[:13], arguments[14], arguments[15], arguments[16:]
    if named:
        return None
    return _adam_update("AdamW", has_decay, *state, decay, *settings)


def _adam_update(
    name: str,
    has_decay: bool,
    parameter: Any,
    gradient: Any,
    rate: Any,
    moment1: Any,
    moment2: Any,
    moment2_max: Any,
    beta1_power: Any,
    beta2_power: Any,
    master: Any,
    skip: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    decay: float,
    lazy: bool,
    rows: int,
    multi_precision: bool,
    global_powers: bool,
    amsgrad: bool,
) -> tuple[Any, ...] | None:
    """As Paddle's operators; lazy mode is for sparse gradients, `rows` for their threads."""
    updates = _local.updates
    if updates is None:
        return None
    tensors = [parameter, moment1, moment2, beta1_power, beta2_power, gradient, rate]
    reason = _why_not(tensors, gradient, master)
    if amsgrad or moment2_max is not None:
        reason = "amsgrad"
    elif skip is not None or global_powers or not all(_is_number(n) for n in (beta1, beta2, epsilon)):
        reason = "settings as tensors"
    is_fused = _adam_is_fused() if reason is None else None
    if reason is None and is_fused is None:
        reason = "Paddle's other rounding"
    if reason is not None:
        _left_to_paddle(name, reason)
        return None
    at, *state, its_gradient, at_rate = [tensor.data_ptr() for tensor in tensors]
    settings = (math.prod(parameter.shape), beta1, beta2, epsilon, decay, has_decay, is_fused)
    updates.add(AdamUpdate(at, its_gradient, *state, at_rate, *settings), tensors, written=5)
    return parameter, moment1, moment2, moment2_max, beta1_power, beta2_power, master


def _why_not(tensors: list[Any], gradient: Any, master: Any) -> str | None:
    """Why the kernels cannot do an update of these tensors, the parameter first; None when they can."""
    if master is not None:
        return "multi_precision's master weights"
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            return "a static program"
        if not tensor.is_dense():
            return "sparse gradients"
        if not is_float32(tensor):
            return "parameters other than fp32"
        if not tensor.is_contiguous() or (_HAS_DEVICES and not tensor.place.is_cpu_place()):
            return "parameters that are not contiguous on the CPU"
    if gradient.shape != tensors[0].shape:
        return "a gradient of another shape"
    if len({tensor.data_ptr() for tensor in tensors}) != len(tensors):
        return "tensors that share memory"
    return None


def _is_small(parameter: Any) -> bool:
    return math.prod(parameter.shape) < _SMALL


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _left_to_paddle(name: str, reason: str) -> None:
    """Say once that Paddle's operator is used."""
    line = f"accelerate: {name} is updated by Paddle's own operator: {reason}"
    with _lock:
        first = line not in _said
        _said.add(line)
    if first:
        _log.info(line)


_OVERRIDES = OpOverrides({"momentum_": _momentum, "adam_": _adam, "adamw_": _adamw})


# ----------------------------------------------------------------------------------------------------------
# Which of its roundings this Paddle uses on this processor: asked once, by comparing bits.


def _samples() -> list[np.ndarray]:
    """Values of all magnitudes, down to denormal ones, for a parameter, its gradient and its state."""
    random = np.random.default_rng(0)
    shape = 4, 4099
    values = random.standard_normal(shape) * 10.0 ** random.integers(-42, 10, shape)
    return list(np.concatenate([random.standard_normal(shape), values], axis=1).astype(np.float32))


def _same_bits(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(np.array_equal(a.numpy().view("i4"), b.numpy().view("i4")) for a, b in pairs)


@contextmanager
def _outside_a_step() -> Iterator[None]:
    """Paddle's operators are Paddle's, though a step is being collected."""
    updates, _local.updates = _local.updates, None
    try:
        yield
    finally:
        _local.updates = updates


@functools.cache
def _momentum_agrees() -> bool:
    """Whether the kernel gives the bits of Paddle's Momentum here."""
    for nesterov, kind in itertools.product((False, True), ("", "l2_decay")):
        theirs, ours = ([paddle.to_tensor(values) for values in _samples()[:3]] for _ in range(2))
        rate = paddle.to_tensor([0.1], dtype="float32")
        with _outside_a_step():
            _C_ops.momentum_(*theirs, rate, None, 0.9, nesterov, kind, 1e-4, False, 1.0)
        addresses = (tensor.data_ptr() for tensor in (*ours, rate))
        settings = (math.prod(ours[0].shape), 0.9, 1e-4, bool(kind), nesterov)
        optimizer_kernels().momentum_step([MomentumUpdate(*addresses, *settings)])
        if not _same_bits(ours, theirs):
            return False
    return True


@functools.cache
def _adam_is_fused() -> bool | None:
    """Whether Paddle fuses products and additions here; None when the kernel has neither way's bits."""
    return next((is_fused for is_fused in (True, False) if _adam_agrees(is_fused=is_fused)), None)


def _adam_agrees(*, is_fused: bool) -> bool:
    for decay in (None, 0.01):
        theirs, ours = ([paddle.to_tensor(values) for values in _samples()] for _ in range(2))
        for (parameter, gradient, moment1, moment2), paddles in ((theirs, True), (ours, False)):
            moment2.set_value(moment2.abs())
            one, two, rate = (paddle.to_tensor([value], dtype="float32") for value in (0.729, 0.997, 0.001))
            if paddles:
                state = (moment1, moment2, None, one, two, None, None, 0.9, 0.999, 1e-8)
                threads = (False, 1000, False, False, False)
                with _outside_a_step():
                    if decay is None:
                        _C_ops.adam_(parameter, gradient, rate, *state, *threads)
                    else:
                        _C_ops.adamw_(parameter, gradient, rate, *state, 1.0, decay, True, *threads)
            else:
                tensors = (parameter, gradient, moment1, moment2, one, two, rate)
                addresses = (tensor.data_ptr() for tensor in tensors)
                settings = (0.9, 0.999, 1e-8, decay or 0.0, decay is not None, is_fused)
                count = math.prod(parameter.shape)
                optimizer_kernels().adam_step([AdamUpdate(*addresses, count, *settings)])
        if not _same_bits(ours, theirs):
            return False
    return True
