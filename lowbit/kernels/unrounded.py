"""Convolutions whose operands are quantized on the way: the bindings of csrc/gemm/unrounded.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from lowbit.kernels.gemm import SHAPE, CMultiples, Geometry, Multiples, Operand, shape_of
from lowbit.kernels.library import ADDRESS, Signatures, declare, kernels
from lowbit.kernels.quantization import Axes, CAxes, CDraw, CLevels, Draw, Integers, check_draws

_MOST_DRAWS = 2


class _Quantization(ctypes.Structure):
    _fields_ = [
        ("axes", CAxes),
        ("levels", CLevels),
        ("iterations", ctypes.c_int32),
        ("count_draws", ctypes.c_int32),
        ("ratio", ctypes.c_float),
        ("draws", CDraw * _MOST_DRAWS),
        ("first", ctypes.c_uint64),
    ]


class Unrounded(ctypes.Structure):
    """lowbit_unrounded: integers that are yet to be made of `values`, or unpacked.

    Addresses are not checked, and must live as long as they are used.
    """

    _fields_ = [
        ("operand", Operand),
        ("values", ADDRESS),
        ("largest", ADDRESS),
        ("packed", ADDRESS),
        ("packed_count", ctypes.c_int64),
        ("quantization", _Quantization),
    ]

    @classmethod
    def quantized(
        cls, operand: Operand, axes: Axes, grid: Integers, *, turns: int, ratio: float, draws: int
    ) -> Unrounded:
        """What depends on shapes only, for `of_values`: bounds, strides, axes, grid."""
        made = cls(operand=operand)
        made.quantization.axes = CAxes(axes.sizes, axes.owns)
        made.quantization.levels = CLevels(*grid)
        made.quantization.iterations, made.quantization.ratio = turns, ratio
        made.quantization.count_draws = draws
        check_draws(grid, draws)
        return made

    def of_values(self, values: int, draws: Sequence[Draw], first: int, largest: int | None) -> Unrounded:
        """The same for these values and draws, which `QuantizeKernels.to_dynamic_integers` describes."""
        made = type(self).from_buffer_copy(self)
        made.values, made.largest = values, largest
        quantization = made.quantization
        for number, draw in enumerate(draws):
            quantization.draws[number] = draw
        quantization.first = first
        return made


class _Results(ctypes.Structure):
    _fields_ = [("packed", ADDRESS), ("scales", ADDRESS), ("multiples", CMultiples)]


def forward(
    geometry: Geometry,
    x: Unrounded,
    w: Unrounded,
    *,
    packed: int | None,
    scales: int,
    multiples: Multiples,
) -> bool:
    """`gemm.forward_multiples`, the scales of Y, and X `packed` in half a byte per element if wanted.

    >>> forward(geometry, x, w, packed=None, scales=scales.data_ptr(), multiples=multiples)
    """
    results = _Results(packed, scales, CMultiples(*multiples))
    return bool(_library().lowbit_unrounded_forward(shape_of(geometry), x, w, results))


def grad_input(geometry: Geometry, dy: Unrounded, w: Unrounded, dx: int) -> None:
    """`gemm.grad_input`; scales must be those that it takes.

    >>> grad_input(geometry, dy, w, dx.data_ptr())
    """
    _library().lowbit_unrounded_grad_input(shape_of(geometry), dy, w, dx)


def grad_weight(geometry: Geometry, dy: Unrounded, x: Unrounded, dw: int) -> None:
    """`gemm.grad_weight`; scales must be those that it takes.

    >>> grad_weight(geometry, dy, x, dw.data_ptr())
    """
    _library().lowbit_unrounded_grad_weight(shape_of(geometry), dy, x, dw)


_UNROUNDED = ctypes.POINTER(Unrounded)
_SIGNATURES: Signatures = {
    name: (ctypes.c_int, [SHAPE, _UNROUNDED, _UNROUNDED, ADDRESS])
    for name in ("lowbit_unrounded_grad_input", "lowbit_unrounded_grad_weight")
} | {
    "lowbit_unrounded_forward": (
        ctypes.c_int32,
        [SHAPE, _UNROUNDED, _UNROUNDED, ctypes.POINTER(_Results)],
    )
}


@cache
def _library() -> ctypes.CDLL:
    found = kernels()
    assert found is not None  # callers have asked
    declare(found.library, _SIGNATURES)
    return found.library
