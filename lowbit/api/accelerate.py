"""accelerate(): your own training loop on lowbit's fast CPU path, as a call or a `with`."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

import paddle

from lowbit.accel import onednn_objects
from lowbit.accel.convolutions import convolution_library, fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops, norm_library
from lowbit.accel.optimizer_step import fast_updates, update_library
from lowbit.accel.process_settings import (
    SETTING,
    FixStatus,
    apply_amd_fix,
    keep_freed_memory,
    return_freed_memory,
)
from lowbit.api.result import Result
from lowbit.errors import LowbitError
from lowbit.formatting import Section
from lowbit.kernels import why_missing
from lowbit.machine.device import math_threads, set_math_threads

_log = logging.getLogger("lowbit")
_lock = threading.Lock()
_holders_of_amd_fix = 0
_threads: dict[object, int] = {}  # requested by open calls; the last one applies
_threads_before = 1
_said = ""  # the line that was logged last; it is logged once
# Exit stacks of open calls: without a reference they would be collected, which undoes their context managers.
_open: set[ExitStack] = set()


@dataclass(frozen=True)
class Acceleration(Result):
    """The result of `accelerate`, in effect until `close()` or the end of the `with` block."""

    convolutions: str  # the library that convolves, such as "oneDNN 3.6.2"; "Paddle": nothing was changed
    batch_norm: str  # of batch norm, ReLU and max-pool: "lowbit" or "Paddle"
    updates: str  # of Momentum, Adam and AdamW: "lowbit" or "Paddle"
    memory: bool  # whether freed memory is kept for the next step
    matrix_products: str  # what was done about the matrix library on AMD processors
    threads: int
    _undo: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)
    _thread: int = field(default_factory=threading.get_ident, repr=False, compare=False)

    def close(self) -> None:
        """Undo it, unless another `accelerate` is still open. A second call does nothing."""
        if threading.get_ident() != self._thread:
            raise LowbitError("accelerate() affects the thread that called it: close it there")
        self._undo.close()

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def to_dict(self) -> dict[str, object]:
        """All fields as JSON-compatible values."""
        names = ("convolutions", "batch_norm", "updates", "memory", "matrix_products", "threads")
        return {name: getattr(self, name) for name in names}

    def _sections(self) -> list[Section]:
        rows = (
            ("convolutions", self.convolutions),
            ("batch norm, ReLU, max-pool", self.batch_norm),
            ("Momentum, Adam, AdamW", self.updates),
            ("freed memory", "kept for the next step" if self.memory else "as usual"),
            ("matrix products", self.matrix_products),
            ("threads", str(self.threads)),
        )
        return [Section("Training on the CPU", ("", "computed by"), rows, left=2)]

    def _line(self) -> str:
        memory = ", freed memory kept" if self.memory else ""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return (
            f"accelerate: convolutions in {self.convolutions}, batch norm, ReLU and max-pool in "
            f"{self.batch_norm}, optimizer steps in {self.updates}{memory}, {threads}"
        )


def accelerate(threads: int | None = None) -> Acceleration:
    """Speed up training on the CPU in your own loop, in fp32 or quantized.

    fp32 convolutions run in oneDNN, 1x1 ones in MKL. Batch norm, ReLU, max-pool and the updates of Momentum,
    Adam and AdamW run in lowbit's kernels; the updates give the same bits as Paddle's. Freed memory is kept
    for the next step. On AMD processors, Paddle's matrix library is switched to its fast path, if the process
    has not yet computed a matrix product. Results are the same except for the order of sums. On a GPU, or
    without the compiled libraries, nothing changes.

    `threads` sets the number of threads of Paddle and of lowbit's kernels (default: OMP_NUM_THREADS, which
    Paddle sets to 1). The settings are logged once (logger `lowbit`). Operators are replaced in the calling
    thread only; memory and the matrix library are settings of the process. The effect ends with `close()` or
    the `with` block, else with the process; calls can be nested and closed in any order.

    >>> import paddle, lowbit
    >>> net = paddle.nn.Conv2D(3, 4, 3)
    >>> with lowbit.accelerate():
    ...     net(paddle.ones([1, 3, 8, 8])).sum().backward()
    >>> list(net.weight.grad.shape)
    [4, 3, 3, 3]
    """
    global _said
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise LowbitError(f"threads must be a whole number of at least 1, got {threads!r}")
    on_cpu = paddle.device.get_device() == "cpu"
    with ExitStack() as undo:
        fix = _hold_amd_fix(undo)
        if threads is not None:
            _hold_threads(threads, undo)
        kept = on_cpu and keep_freed_memory()
        if kept:
            undo.callback(return_freed_memory)
        undo.enter_context(fast_convolutions(wanted=on_cpu))
        undo.enter_context(fast_norm_ops(wanted=on_cpu))
        undo.enter_context(fast_updates(wanted=on_cpu))
        held = undo.pop_all()
        held.callback(_open.discard, held)
        _open.add(held)
        done = Acceleration(
            convolutions=convolution_library(wanted=on_cpu),
            batch_norm=norm_library(wanted=on_cpu),
            updates=update_library(wanted=on_cpu),
            memory=kept,
            matrix_products=fix,
            threads=math_threads(),
            _undo=held,
        )
    line = done._line()
    with _lock:
        first, _said = line != _said, line
    if first:
        _log.info("%s; %s", line, done.matrix_products)
        for reason in filter(None, (onednn_objects.why_missing(), why_missing())) if on_cpu else ():
            _log.warning("accelerate: %s", reason)
    return done


def _hold_threads(threads: int, undo: ExitStack) -> None:
    global _threads_before
    key = object()
    with _lock:
        if not _threads:
            _threads_before = math_threads()
        _threads[key] = threads
        set_math_threads(threads)
    undo.callback(_release_threads, key)


def _release_threads(key: object) -> None:
    with _lock:
        del _threads[key]
        set_math_threads(list(_threads.values())[-1] if _threads else _threads_before)


def _hold_amd_fix(undo: ExitStack) -> str:
    """Apply the fix; it is taken out of the environment when the last holder leaves.

    The matrix library has read it by then, so that this is for child processes.
    """
    global _holders_of_amd_fix
    with _lock:
        fix = apply_amd_fix()
        if fix.status is FixStatus.APPLIED or _holders_of_amd_fix:
            _holders_of_amd_fix += 1
            undo.callback(_release_amd_fix)
        return fix.message


def _release_amd_fix() -> None:
    global _holders_of_amd_fix
    with _lock:
        _holders_of_amd_fix -= 1
        if not _holders_of_amd_fix:
            os.environ.pop(SETTING, None)
