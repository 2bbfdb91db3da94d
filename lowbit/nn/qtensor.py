"""A quantized tensor: integers with their scale, as multiplied and as saved for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import paddle
from paddle import Tensor

from lowbit.kernels.quantization import quantize_kernels
from lowbit.numerics import Grid, Rounding, fused, fused_groups, quantize_to_integers
from lowbit.numerics.exact import add, multiply
from lowbit.numerics.fused import new_tensor


@dataclass(frozen=True, kw_only=True)
class QTensor:
    """Small integers with their scale: the original is about `data * scale`, symmetric around 0.

    data: int8 or uint8 of the original's shape (int16 for the sum of two 8-bit roundings).
    scale: fp32 with as many axes as `data`, of size 1 where a scale is shared. None: `data` are plain values
        in full precision or bf16, not integers.
    lowest, highest: bounds that all integers keep; kernels choose their accumulators by them.

    >>> QTensor(data=paddle.to_tensor([2, -3], "int8"), scale=paddle.to_tensor([0.5])).values().tolist()
    [1.0, -1.5]
    """

    data: Tensor
    scale: Tensor | None = None
    lowest: int = 0
    highest: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether it is integers times a scale."""
        return self.scale is not None

    def integers(self) -> Tensor:
        """The integers, held in fp32."""
        return self.data.cast("float32")

    def values(self) -> Tensor:
        """What it stands for, in fp32."""
        if not self.is_integer:
            return self.data
        found = fused_groups.from_bytes(self.data, self.scale)
        return multiply(self.integers(), self.scale) if found is None else found

    def laid_out(self, data: Tensor, scale: Tensor | None) -> QTensor:
        """The same integers in another layout."""
        return QTensor(data=data, scale=scale, lowest=self.lowest, highest=self.highest)


def round_operand(
    x: Tensor, scale: Tensor, grid: Grid, roundings: Sequence[Rounding | None] = (None,)
) -> QTensor:
    """`x` as integers; of several roundings the mean: their integers are added up, and the scale divided.

    In one pass of a C++ kernel, or on plain operators. A value that is NaN makes the scale NaN, so that it
    shows in every product.

    >>> round_operand(paddle.to_tensor([[0.6]]), paddle.to_tensor([[0.5]]), parse_grid("int4")).data.tolist()
    [[1]]
    """
    count = len(roundings)
    found = fused_groups.to_bytes(x, scale, grid, roundings)
    if found is None:
        parts = [quantize_to_integers(x, scale, grid, rounding) for rounding in roundings]
        total = parts[0] if count == 1 else add(*parts)
        broken = paddle.isnan(total)
        data = paddle.where(broken, paddle.zeros_like(total), total).cast(_type_for(grid, count))
        found = data, bool(broken.any())
    data, has_broken = found
    return operand_of_sums(data, scale, grid, count, has_nan=bool(has_broken))


def operand_of_sums(data: Tensor, scale: Tensor, grid: Grid, count: int, *, has_nan: bool) -> QTensor:
    """The operand whose integers are the sums of `count` roundings; `has_nan`: whether a value was NaN."""
    if count > 1:
        scale = multiply(scale, 1 / count)
    if has_nan:
        scale = paddle.full_like(scale, float("nan"))
    return QTensor(data=data, scale=scale, lowest=grid.lowest * count, highest=grid.highest * count)


def with_axes_of(x: Tensor, scale: Tensor) -> Tensor:
    """The scale with as many axes as `x` has, such that it is broadcast against it as before.

    >>> with_axes_of(paddle.ones([2, 3]), paddle.ones([3])).shape
    paddle.Size([1, 3])
    """
    shape = scale.shape
    missing = len(x.shape) - len(shape)
    return scale.reshape([1] * missing + shape) if missing else scale


def _type_for(grid: Grid, count: int) -> str:
    """A byte, but for sums of two 8-bit integers."""
    lowest, highest = grid.lowest * count, grid.highest * count
    if lowest >= 0 and highest <= 255:
        return "uint8"
    return "int8" if lowest >= -128 and highest <= 127 else "int16"


# Operands saved for the backward pass; up to 4 bits are packed in half a byte.


class SavedQTensor:
    """Gives back the operand that it was made of; one that was overwritten in between is an error.

    >>> integers = paddle.to_tensor([3, -8, 7], "int8")
    >>> kept = SavedQTensor(QTensor(data=integers, scale=paddle.ones([1]), lowest=-8, highest=7))
    >>> kept.bytes, kept.operand().data.tolist()
    (2, [3, -8, 7])
    """

    def __init__(self, operand: QTensor) -> None:
        packed = _packed(operand)
        self._shape: Sequence[int] | None
        if packed is None:
            self._shape, self._operand = None, operand
        else:
            self._shape, self._signed = operand.data.shape, operand.lowest < 0
            self._operand = operand.laid_out(packed, operand.scale)
        self._version = fused.version(self._operand.data)

    @classmethod
    def of_packed(cls, packed: QTensor, shape: Sequence[int]) -> SavedQTensor:
        """Of an operand of this shape whose integers are packed already."""
        made = cls.__new__(cls)
        made._shape, made._signed, made._operand = list(shape), packed.lowest < 0, packed
        made._version = fused.version(packed.data)
        return made

    @property
    def bytes(self) -> int:
        """What its integers or values take."""
        return self._operand.data.size * self._operand.data.element_size()

    def as_saved(self) -> tuple[QTensor, Sequence[int] | None]:
        """The operand as it is saved; and its shape, if its integers are packed."""
        fused.check_unchanged(self._operand.data, self._version)
        return self._operand, self._shape

    def operand(self) -> QTensor:
        """The operand, its integers a byte each again."""
        saved, shape = self.as_saved()
        if shape is None:
            return saved
        whole = new_tensor(shape, "int8" if self._signed else "uint8")
        count = math.prod(shape)
        quantize_kernels().unpack_nibbles(saved.data.data_ptr(), whole.data_ptr(), count, signed=self._signed)
        return saved.laid_out(whole, saved.scale)


def fits_nibbles(lowest: int, highest: int) -> bool:
    """Whether half a byte holds integers of these bounds."""
    return (lowest >= -8 and highest <= 7) or (lowest >= 0 and highest <= 15)


def _packed(operand: QTensor) -> Tensor | None:
    """Two integers to a byte, where they have 4 bits and there is a kernel for it."""
    if not operand.is_integer or not fits_nibbles(operand.lowest, operand.highest):
        return None
    kernels = quantize_kernels()
    if kernels is None or not operand.data.place.is_cpu_place():
        return None
    data = operand.data.contiguous()
    count = math.prod(data.shape)
    packed = new_tensor([(count + 1) // 2], "uint8")
    kernels.pack_nibbles(data.data_ptr(), packed.data_ptr(), count)
    return packed
