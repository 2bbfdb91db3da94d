"""One optimizer step for many parameters of contiguous fp32: the bindings of csrc/optimizer/optimizer.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from lowbit.kernels.library import ADDRESS, declare, kernels


class MomentumUpdate(NamedTuple):
    """A parameter of Momentum: addresses, and settings; `rate` is the address of one number."""

    parameter: int
    gradient: int
    velocity: int
    rate: int
    elements: int
    momentum: float
    decay: float
    has_decay: bool
    is_nesterov: bool


class AdamUpdate(NamedTuple):
    """A parameter of Adam, with decay of AdamW; `rate` and the powers are addresses of one number each."""

    parameter: int
    gradient: int
    moment1: int
    moment2: int
    beta1_power: int
    beta2_power: int
    rate: int
    elements: int
    beta1: float
    beta2: float
    epsilon: float
    decay: float
    has_decay: bool
    is_fused: bool


class _Momentum(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in MomentumUpdate._fields[:4]),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("momentum", "decay")),
        *((name, ctypes.c_int32) for name in ("has_decay", "is_nesterov")),
    ]


class _Adam(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in AdamUpdate._fields[:7]),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("beta1", "beta2", "epsilon", "decay")),
        *((name, ctypes.c_int32) for name in ("has_decay", "is_fused")),
    ]


class OptimizerKernels:
    """The functions of csrc/optimizer/optimizer.h, which defines what they compute; addresses are unchecked.

    No memory of one parameter may be another one's.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        arguments = [ADDRESS, ctypes.c_int64]
        names = ("lowbit_momentum_step", "lowbit_adam_step")
        declare(library, {name: (ctypes.c_int, arguments) for name in names})

    def momentum_step(self, updates: Sequence[MomentumUpdate]) -> None:
        """Parameters and velocities."""
        self._library.lowbit_momentum_step(_array(_Momentum, updates), len(updates))

    def adam_step(self, updates: Sequence[AdamUpdate]) -> None:
        """Parameters, moments and powers."""
        self._library.lowbit_adam_step(_array(_Adam, updates), len(updates))


@cache
def _bound(library: ctypes.CDLL) -> OptimizerKernels:
    return OptimizerKernels(library)


def optimizer_kernels() -> OptimizerKernels | None:
    """The functions; None where there are no kernels (lowbit.kernels.why_missing says why)."""
    found = kernels()
    return None if found is None else _bound(found.library)


def _array(kind: Any, updates: Sequence[tuple]) -> Any:
    """The updates as an array of C structures; ctypes fills each from its tuple."""
    return (kind * len(updates))(*updates)
