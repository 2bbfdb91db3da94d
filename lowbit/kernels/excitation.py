"""Squeeze-and-excitation of QAT: the bindings of csrc/norm/excitation.h."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

from lowbit.kernels.library import ADDRESS, Signatures, declare, kernels
from lowbit.kernels.quantization import OBSERVER, CObserver


class GateLayer(NamedTuple):
    """A quantized 1x1 convolution: its input's quantizer, addresses of its int8 weight and scales."""

    input: CObserver
    weight: int
    scales: int
    bias: int | None
    highest: int


class _GateLayer(ctypes.Structure):
    _fields_ = [
        ("input", OBSERVER),
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "bias")),
        ("highest", ctypes.c_int32),
    ]


class _Excitation(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("images", "channels", "inner", "hidden")),
        *((name, _GateLayer) for name in ("first", "second")),
        *((name, OBSERVER) for name in ("output", "gate")),
        *((name, ctypes.c_void_p) for name in ("floats", "bytes")),
    ]


_EXCITATION, _STATUS = ctypes.POINTER(_Excitation), ctypes.c_int
_SIGNATURES: Signatures = {
    "lowbit_excitation_forward": (_STATUS, [_EXCITATION] + [ADDRESS] * 2),
    "lowbit_excitation_backward_gate": (_STATUS, [_EXCITATION] + [ADDRESS] * 9),
    "lowbit_excitation_backward_hidden": (_STATUS, [_EXCITATION] + [ADDRESS] * 5),
    "lowbit_excitation_backward_mean": (_STATUS, [_EXCITATION] + [ADDRESS] * 3),
}


class Excitation:
    """One call of the block; the memory that its addresses name must live as long as this.

    sizes: images, channels, pixels of each, and channels of the first layer's output.
    output, gate: the quantizers in front of the hard sigmoid and behind it, each or None.
    floats, bytes_: memory for what backward needs, as large as `state_sizes` says.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int, int],
        first: GateLayer,
        second: GateLayer,
        output: CObserver | None,
        gate: CObserver | None,
        floats: int,
        bytes_: int,
    ) -> None:
        found = kernels()
        assert found is not None  # callers have asked
        self._library = _bound(found.library)
        layers = (_GateLayer(ctypes.pointer(one.input), *one[1:]) for one in (first, second))
        quantizers = (None if one is None else ctypes.pointer(one) for one in (output, gate))
        self._of = ctypes.byref(_Excitation(*sizes, *layers, *quantizers, floats, bytes_))

    @staticmethod
    def state_sizes(images: int, channels: int, hidden: int) -> tuple[int, int]:
        """How many floats and how many bytes are kept for backward.

        >>> Excitation.state_sizes(2, 3, 4)
        (32, 40)
        """
        floats = 4 * images * channels + images * hidden
        return floats, floats + images * hidden

    def forward(self, x: int, y: int) -> bool:
        """Y; False, and all averages as before, if a value is NaN."""
        return bool(self._library.lowbit_excitation_forward(self._of, x, y))

    def backward_gate(
        self,
        x: int,
        dy: int,
        dx: int,
        doutput: int,
        weight: int,
        input_: int,
        dbias: int | None,
        doutput_alpha: int | None,
        dgate_alpha: int | None,
    ) -> None:
        """dX without its part through the mean, the gradient of the second layer's output, its operands."""
        self._library.lowbit_excitation_backward_gate(
            self._of, x, dy, dx, doutput, weight, input_, dbias, doutput_alpha, dgate_alpha
        )

    def backward_hidden(
        self, doutput: int, weight: int, input_: int, dbias: int | None, dalpha: int | None
    ) -> None:
        """From the gradient of the second layer's input that of the first one's output, in place."""
        self._library.lowbit_excitation_backward_hidden(self._of, doutput, weight, input_, dbias, dalpha)

    def backward_mean(self, dmean: int, dx: int, dalpha: int | None) -> None:
        """Adds the part of dX through the mean; the gradient of the first layer's input is overwritten."""
        self._library.lowbit_excitation_backward_mean(self._of, dmean, dx, dalpha)


@cache
def _bound(library: ctypes.CDLL) -> ctypes.CDLL:
    declare(library, _SIGNATURES)
    return library
