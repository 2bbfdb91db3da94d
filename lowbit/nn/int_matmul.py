"""A product of two quantized tensors, in real integers by the C++ kernels or simulated in fp32.

`multiply_operands` chooses; `simulate` is the readable twin, which gives the same integers and sums. Which
scales the kernels take is in `lowbit.kernels.gemm`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import paddle
from paddle import Tensor

from lowbit.accel.fused_norm import IntegerScale, SavedMultiples
from lowbit.kernels import gemm as cpp
from lowbit.kernels import kernels, unrounded
from lowbit.kernels.gemm import INTEGER_SCALES, Geometry
from lowbit.kernels.unrounded import Unrounded
from lowbit.nn.linear_ops import (
    ChannelsLast,
    Convolution,
    LinearOp,
    Matrix,
    Transposed,
    channels_first,
    channels_last,
)
from lowbit.nn.qtensor import QTensor, SavedQTensor, fits_nibbles
from lowbit.numerics.exact import multiply
from lowbit.numerics.fused import new_tensor
from lowbit.numerics.fused_groups import DynamicBytes, groups_along, integers_of
from lowbit.numerics.grid import Grid

# Along which axes of NCHW scales may differ, per product, for its first and its second operand.
_SCALES = {
    product: tuple({"NCHW".index(letter) for letter in letters} for letters in operands.values())
    for product, operands in INTEGER_SCALES["Conv2D"].items()
}
_BYTES = (paddle.int8, paddle.uint8)
_CONVOLUTION_AXES = 4
_SMALL = 15  # sums of larger operands' products do not stay within 16 bits


def in_integers(linear_op: LinearOp, product: str, a: QTensor, b: QTensor) -> Tensor | None:
    """The product of the operands' integers; None where it cannot be one (then it is for `simulate`)."""
    if kernels() is None or not (_is_bytes(a) and _is_bytes(b)):
        return None
    if isinstance(linear_op, Convolution):
        return _convolution(linear_op.geometry, product, a, b)
    if isinstance(linear_op, Matrix):
        return _matrix(product, a, b)
    if isinstance(linear_op, ChannelsLast):
        a, b = _channels_first(a), _channels_first(b) if product == "grad_weight" else b
        result = in_integers(linear_op.inner, product, a, b)
        return result if result is None or product == "grad_weight" else channels_last(result)
    if isinstance(linear_op, Transposed):
        return _convolution(linear_op.convolution.geometry, *_swapped(product, a, b))
    return None


def _channels_first(operand: QTensor) -> QTensor:
    return operand.laid_out(channels_first(operand.data), channels_first(operand.scale))


def _swapped(product: str, a: QTensor, b: QTensor) -> tuple[str, QTensor, QTensor]:
    """A transposed convolution's product as one of the convolution that it is the gradient of."""
    if product == "grad_weight":
        return product, b, a
    return {"forward": "grad_input", "grad_input": "forward"}[product], a, b


def _is_bytes(operand: QTensor) -> bool:
    if not operand.is_integer:
        return False
    data = operand.data
    dtype = data.dtype
    # Paddle's == takes microseconds, and `in` tries == with the first before `is` with the second.
    is_byte = dtype is paddle.int8 or dtype is paddle.uint8 or dtype in _BYTES
    return is_byte and data.place.is_cpu_place()


def is_small(lowest: int, highest: int) -> bool:
    """Whether 16 bits are enough for sums of products of such integers, unless these are very many."""
    return lowest >= -_SMALL and highest <= _SMALL


def forward_in_multiples(
    linear_op: LinearOp, x: QTensor, w: QTensor, whole: IntegerScale
) -> SavedMultiples | None:
    """The forward product's exact sums, which times its scale are Y; without Y in fp32.

    None where no kernel writes them, or where their bits do not hold them all.
    """
    if kernels() is None or not isinstance(linear_op, Convolution) or not (_is_bytes(x) and _is_bytes(w)):
        return None
    operands = _operands("forward", x, w)
    if operands is None or not cpp.gives_multiples(linear_op.geometry, *operands):
        return None
    multiples = SavedMultiples(linear_op.geometry.output, whole)
    fits = cpp.forward_multiples(linear_op.geometry, *operands, multiples.addresses)
    return multiples if fits else None


def _convolution(geometry: Geometry, product: str, a: QTensor, b: QTensor) -> Tensor | None:
    """dY, X and W as NCHW; the result in the shape of Y, dX or dW."""
    operands = _operands(product, a, b)
    if operands is None:
        return None
    result = new_tensor(_shape_of_result(geometry, product))
    # cpp.forward, cpp.grad_input or cpp.grad_weight
    getattr(cpp, product)(geometry, *operands, result.data_ptr())
    return result


def _operands(product: str, a: QTensor, b: QTensor) -> tuple[cpp.Operand, cpp.Operand] | None:
    """As addresses; None where their scales do not come out of the sums."""
    allowed, scales = _SCALES[product], (_scales_of(a), _scales_of(b))
    if not (scales[0].owners <= allowed[0] and scales[1].owners <= allowed[1]):
        return None
    return _handed_over(a, scales[0]), _handed_over(b, scales[1])


@lru_cache(maxsize=4096)
def _shape_of_result(geometry: Geometry, product: str) -> tuple[int, ...]:
    weight = (geometry.outputs, geometry.input[1] // geometry.groups, *geometry.kernel)
    return {"forward": geometry.output, "grad_input": geometry.input, "grad_weight": weight}[product]


def _matrix(product: str, a: QTensor, b: QTensor) -> Tensor | None:
    """A Linear layer as a 1x1 convolution of images of one pixel, its rows the samples."""
    leading = a.data.shape[:-1]
    rows = math.prod(leading)
    if product == "grad_weight":
        dy, x = _rows(a, rows), _rows(b, rows)
        geometry = _geometry(rows, x.data.shape[1], dy.data.shape[1])
        result = _convolution(geometry, product, dy, x)
        if result is None:
            return None
        # Not a view: paddle.DataParallel adds up gradients as they lie in memory, whatever their strides.
        return result.reshape(result.shape[:2]).transpose([1, 0]).contiguous()
    inputs, outputs = b.data.shape
    result = _convolution(_geometry(rows, inputs, outputs), product, _rows(a, rows), _turned(b))
    return None if result is None else result.reshape([*leading, -1])


def _geometry(rows: int, inputs: int, outputs: int) -> Geometry:
    return Geometry(
        input=(rows, inputs, 1, 1),
        outputs=outputs,
        kernel=(1, 1),
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
        groups=1,
    )


def _rows(operand: QTensor, rows: int) -> QTensor:
    """[..., features] as [rows, features, 1, 1], with a scale per row where they differ along any of them."""
    data, scale = operand.data, operand.scale
    features = data.shape[-1]
    if any(axis != data.ndim - 1 for axis in _owners(scale.shape)):
        scale = paddle.expand(scale, [*data.shape[:-1], scale.shape[-1]]).reshape([rows, -1, 1, 1])
    else:
        scale = scale.reshape([1, -1, 1, 1])
    return operand.laid_out(data.reshape([rows, features, 1, 1]), scale)


def _turned(weight: QTensor) -> QTensor:
    """A weight [inputs, outputs] as [outputs, inputs, 1, 1]."""
    data = weight.data.transpose([1, 0]).contiguous().unsqueeze([2, 3])
    return weight.laid_out(data, weight.scale.transpose([1, 0]).contiguous().unsqueeze([2, 3]))


class _Scales(NamedTuple):
    """Along which axes of NCHW scales differ, and how far apart they lie once they have this shape."""

    owners: frozenset[int]
    shape: list[int]
    steps: dict[str, int]


def _scales_of(operand: QTensor) -> _Scales:
    return _scales(tuple(operand.data.shape), tuple(operand.scale.shape))


@lru_cache(maxsize=4096)
def _scales(shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> _Scales:
    owners = _owners(scale_shape)
    if owners & {2, 3}:
        samples, pixels = scale_shape[0], shape[2:]
        steps = {"of_n": math.prod(pixels) if samples > 1 else 0, "of_pixel": 1}
        return _Scales(owners, [samples, 1, *pixels], steps)
    steps = {"of_n": shape[1] if 1 in owners else 1} if 0 in owners else {}
    steps |= {"of_c": 1} if 1 in owners else {}
    return _Scales(owners, list(scale_shape), steps)


def _handed_over(operand: QTensor, scales: _Scales) -> cpp.Operand:
    """The operand as addresses."""
    data, scale = operand.data.contiguous(), operand.scale
    scale = (scale if scale.shape == scales.shape else paddle.expand(scale, scales.shape)).contiguous()
    handed = cpp.Operand(
        integers=data.data_ptr(),
        lowest=operand.lowest,
        highest=operand.highest,
        scale=scale.data_ptr(),
        **scales.steps,
    )
    handed.tensors = data, scale  # live as long as their addresses are used
    return handed


def _owners(scale_shape: Sequence[int]) -> frozenset[int]:
    """The axes along which scales differ."""
    return frozenset(axis for axis, size in enumerate(scale_shape) if size != 1)


# Products whose operands a kernel makes on the way.


class UnroundedForward(NamedTuple):
    """What `forward_of_unrounded` gives: Y as multiples of a scale, and X saved."""

    multiples: SavedMultiples
    whole: IntegerScale
    x: SavedQTensor


def forward_of_unrounded(linear_op: LinearOp, x: DynamicBytes, w: DynamicBytes) -> UnroundedForward | None:
    """`forward_in_multiples`, with both operands made in the same call, and X packed where it can be.

    None where no kernel does that, or where the bits of the multiples do not hold them all.
    """
    if not isinstance(linear_op, Convolution):
        return None
    geometry, of_x, of_w = linear_op.geometry, _settings_of("forward", 0, x), _settings_of("forward", 1, w)
    if of_x is None or of_w is None or not cpp.gives_multiples(geometry, of_x.operand, of_w.operand):
        return None
    lowest, highest, shape = of_x.operand.lowest, of_x.operand.highest, x.x.shape
    if is_packed := fits_nibbles(lowest, highest):
        data = new_tensor([(math.prod(shape) + 1) // 2], "uint8")
    else:
        data = new_tensor(shape, "int8" if lowest < 0 else "uint8")
    scale = new_tensor(groups_along(tuple(shape), x.axes)[0])
    saved = QTensor(data=data, scale=scale, lowest=lowest, highest=highest)
    has_high_bits = not all(is_small(one.operand.lowest, one.operand.highest) for one in (of_x, of_w))
    whole = IntegerScale(new_tensor([*geometry.output[:2], 1, 1]), has_high_bits)
    multiples = SavedMultiples(geometry.output, whole)
    a, b = _of_values(of_x, x), _of_values(of_w, w)
    a.operand.scale, address = scale.data_ptr(), data.data_ptr()
    a.operand.integers = None if is_packed else address
    results = {"scales": whole.scale.data_ptr(), "multiples": multiples.addresses}
    if not unrounded.forward(geometry, a, b, packed=address if is_packed else None, **results):
        return None
    kept = SavedQTensor.of_packed(saved, shape) if is_packed else SavedQTensor(saved)
    return UnroundedForward(multiples, whole, kept)


def gradient_of_unrounded(
    linear_op: LinearOp, product: ProductName, dy: DynamicBytes, other: DynamicBytes | SavedQTensor
) -> Tensor | None:
    """`grad_input` or `grad_weight` of `multiply_operands`, with both operands made in the same call.

    None where no kernel does that.
    """
    if not isinstance(linear_op, Convolution):
        return None
    settings = _settings_of(product, 0, dy)
    if isinstance(other, DynamicBytes):
        of_other = _settings_of(product, 1, other)
        b = None if of_other is None else _of_values(of_other, other)
    else:
        b = _of_saved(product, other)
    if settings is None or b is None:
        return None
    a = _of_values(settings, dy)
    result = new_tensor(_shape_of_result(linear_op.geometry, product))
    # unrounded.grad_input or unrounded.grad_weight
    getattr(unrounded, product)(linear_op.geometry, a, b, result.data_ptr())
    return result


def _of_values(settings: Unrounded, of: DynamicBytes) -> Unrounded:
    largest = None if of.largest is None else of.largest.data_ptr()
    return settings.of_values(of.x.data_ptr(), of.draws, of.first, largest)


def _settings_of(product: str, place: int, of: DynamicBytes) -> Unrounded | None:
    return _settings(product, place, tuple(of.x.shape), of.axes, of.grid, of.turns, of.ratio, len(of.draws))


@lru_cache(maxsize=4096)
def _settings(
    product: str,
    place: int,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    grid: Grid,
    turns: int,
    ratio: float,
    draws: int,
) -> Unrounded | None:
    """All but the values; None where their scales do not come out of the sums."""
    if len(shape) != _CONVOLUTION_AXES:
        return None
    scale_shape, seen = groups_along(shape, axes)
    scales = _scales(shape, tuple(scale_shape))
    if not scales.owners <= _SCALES[product][place] or scales.shape != list(scale_shape):
        return None
    count = max(1, draws)
    bounds = {"lowest": grid.lowest * count, "highest": grid.highest * count}
    operand = cpp.Operand(integers=None, **bounds, **scales.steps)
    return Unrounded.quantized(operand, seen, integers_of(grid), turns=turns, ratio=ratio, draws=draws)


def _of_saved(product: str, of: SavedQTensor) -> Unrounded | None:
    """The second operand of a product; its memory is kept alive by what is given."""
    saved, packed_shape = of.as_saved()
    if not saved.is_integer or not (saved.data.is_contiguous() and saved.scale.is_contiguous()):
        return None
    if packed_shape is None and not _is_bytes(saved):
        return None
    shape = tuple(saved.data.shape if packed_shape is None else packed_shape)
    if len(shape) != _CONVOLUTION_AXES:
        return None
    scales = _scales(shape, tuple(saved.scale.shape))
    if not scales.owners <= _SCALES[product][1] or saved.scale.shape != scales.shape:
        return None
    address = saved.data.data_ptr()
    operand = cpp.Operand(
        integers=address,
        lowest=saved.lowest,
        highest=saved.highest,
        scale=saved.scale.data_ptr(),
        **scales.steps,
    )
    if packed_shape is None:
        return Unrounded(operand=operand)
    return Unrounded(operand=operand, packed=address, packed_count=math.prod(shape))


# A product of two operands by either executor.


ProductName = Literal["forward", "grad_input", "grad_weight"]
Executor = Literal["auto", "integer", "simulate"]


def multiply_operands(
    linear_op: LinearOp, product: ProductName, a: QTensor, b: QTensor, executor: Executor
) -> Tensor:
    """X and W, dY and W, or dY and X multiplied; in integers unless `simulate` is asked for or must do."""
    if executor != "simulate":
        result = in_integers(linear_op, product, a, b)
        if result is not None:
            return result
    return simulate(linear_op, product, a, b)


def simulate(linear_op: LinearOp, product: ProductName, a: QTensor, b: QTensor) -> Tensor:
    """The product on Paddle's own operators: integers held in fp32, exact as long as sums stay below 2^24.

    Where scales do not come out of the sum, or an operand is no integer, it is a product of values.
    """
    compute = getattr(linear_op, product)
    if a.is_integer and b.is_integer:
        scale = getattr(linear_op, f"{product}_scale")(a.scale, b.scale)
        if scale is not None:
            return multiply(compute(a.integers(), b.integers()), scale)
    return compute(a.values(), b.values())
