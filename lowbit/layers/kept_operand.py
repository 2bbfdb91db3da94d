"""An operand between forward and backward, in as little memory as it needs: half a byte for up to 4 bits."""

from __future__ import annotations

import math

from paddle import Tensor

from lowbit.kernels.quantize import quantize_kernels
from lowbit.layers.operand import Operand
from lowbit.numerics import fused
from lowbit.numerics.fused import new_tensor


class KeptOperand:
    """Gives back the operand that it was made of; one that was overwritten in between is an error.

    >>> integers = paddle.to_tensor([3, -8, 7], "int8")
    >>> kept = KeptOperand(Operand(data=integers, scale=paddle.ones([1]), lowest=-8, highest=7))
    >>> kept.bytes, kept.operand().data.tolist()
    (2, [3, -8, 7])
    """

    def __init__(self, operand: Operand) -> None:
        packed = _packed(operand)
        if packed is None:
            self._shape, self._operand = None, operand
        else:
            self._shape, self._signed = operand.data.shape, operand.lowest < 0
            self._operand = operand.laid_out(packed, operand.scale)
        self._version = fused.version(self._operand.data)

    @property
    def bytes(self) -> int:
        """What its integers or values take."""
        return self._operand.data.size * self._operand.data.element_size()

    def operand(self) -> Operand:
        """The operand, its integers a byte each again."""
        data = self._operand.data
        fused.check_unchanged(data, self._version)
        if self._shape is None:
            return self._operand
        whole = new_tensor(self._shape, "int8" if self._signed else "uint8")
        count = math.prod(self._shape)
        quantize_kernels().unpack_nibbles(data.data_ptr(), whole.data_ptr(), count, signed=self._signed)
        return self._operand.laid_out(whole, self._operand.scale)


def _packed(operand: Operand) -> Tensor | None:
    """Two integers to a byte, where they have 4 bits and there is a kernel for it."""
    bottom, top = (-8, 7) if operand.lowest < 0 else (0, 15)
    if not operand.is_integer or operand.lowest < bottom or operand.highest > top:
        return None
    kernels = quantize_kernels()
    if kernels is None or not operand.data.place.is_cpu_place():
        return None
    data = operand.data.contiguous()
    count = math.prod(data.shape)
    packed = new_tensor([(count + 1) // 2], "uint8")
    kernels.pack_nibbles(data.data_ptr(), packed.data_ptr(), count)
    return packed
