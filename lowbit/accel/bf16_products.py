"""Convolutions and matrix products in bf16, where the processor multiplies it: by oneDNN, with gradients.

Operands, results and gradients are fp32 tensors. Of each of the three products, the operands are rounded to
bf16, the products added in fp32 and the result rounded to bf16. That is what the emulation of mixed precision
computes (`accel/amp_autocast.py`), except for the order of the sums and denormal numbers, which the
instructions take as 0.
"""

from __future__ import annotations

import math
from typing import Any

from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.accel import onednn, onednn_objects
from lowbit.accel.convolutions import ConvolutionNode, check_first_order, conv2d_geometry
from lowbit.accel.onednn import Factors
from lowbit.machine.cpu import cpu_info
from lowbit.numerics import fused
from lowbit.numerics.exact import is_float32
from lowbit.numerics.fused import new_tensor
from lowbit.numerics.grid import BF16, round_to_grid


def why_not() -> str | None:
    """Why bf16 is not multiplied in bf16 here; None when it is.

    >>> why_not() is None or "processor" in why_not() or "oneDNN" in why_not()
    True
    """
    if (reason := onednn_objects.why_missing()) is not None:
        return reason
    info = cpu_info()  # follows LOWBIT_CPU, unlike oneDNN
    if not (info.has("avx512_bf16") or info.has("amx_bf16")) or not onednn_objects.multiplies_bf16():
        return "this processor has no bf16 instructions (AVX-512 BF16 or AMX)"
    return None


def compute(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
    """An operator of `paddle._C_ops` in bf16; None for one that is not covered, or other tensors.

    compute("matmul", (x, y, False, False), {})
    """
    function = _FUNCTIONS.get(name)
    return None if function is None or named else function(*arguments)


def _conv2d(*arguments: Any) -> Tensor | None:
    return _convolution(arguments, dilation=5, groups=6)


def _depthwise_conv2d(*arguments: Any) -> Tensor | None:
    return _convolution(arguments, dilation=6, groups=5)


def _convolution(arguments: tuple[Any, ...], *, dilation: int, groups: int) -> Tensor | None:
    geometry = conv2d_geometry(arguments, dilation=dilation, groups=groups)
    if geometry is None:
        return None
    x, weight = arguments[:2]
    learning = (not x.stop_gradient, not weight.stop_gradient)
    return ConvolutionNode.apply(x, weight, geometry, learning, True)


def _matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Tensor | None:
    """Matrices, or as many in x as in y; a matrix y for all of x. Broadcasting is left to the emulation."""
    if not (_is_plain(x) and _is_plain(y)) or x.ndim < 2 or y.ndim < 2:
        return None
    if y.ndim == 2 and not transpose_x:
        batch, rows = (), math.prod(x.shape[:-1])
    elif x.shape[:-2] == y.shape[:-2]:
        batch, rows = tuple(x.shape[:-2]), x.shape[-1 if transpose_x else -2]
    else:
        return None
    inner, columns = x.shape[-2 if transpose_x else -1], y.shape[-2 if transpose_y else -1]
    if y.shape[-1 if transpose_y else -2] != inner:
        return None  # Paddle's own operator has the error message for it
    shape = [*x.shape[:-1], columns] if y.ndim == 2 and not transpose_x else [*batch, rows, columns]
    factors = Factors(math.prod(batch), rows, inner, columns, bool(transpose_x), bool(transpose_y))
    return _MatrixProduct.apply(x, y, None, factors, shape)


def _linear(x: Any, weight: Any, bias: Any) -> Tensor | None:
    if not (_is_plain(x) and _is_plain(weight)) or weight.ndim != 2 or x.ndim < 2:
        return None
    inner, columns = weight.shape
    if x.shape[-1] != inner or (bias is not None and not (_is_plain(bias) and bias.shape == [columns])):
        return None
    factors = Factors(1, math.prod(x.shape[:-1]), inner, columns)
    return _MatrixProduct.apply(x, weight, bias, factors, [*x.shape[:-1], columns])


class _MatrixProduct(PyLayer):
    """C = A B + bias; the bias is added in fp32, before C is rounded."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, factors: Factors, shape: list[int]
    ) -> Tensor:
        inputs = a, b, bias
        ctx.learning = [tensor is not None and not tensor.stop_gradient for tensor in inputs]
        ctx.given, ctx.factors = [tensor is not None for tensor in inputs], factors
        a, b = a.contiguous(), b.contiguous()
        bias = None if bias is None else bias.contiguous()  # kept until the product is done
        fused.save_for_backward(ctx, a, b)
        c = new_tensor(shape)
        at_bias = None if bias is None else bias.data_ptr()
        product = onednn.prepared_matrices(factors, has_bias=bias is not None)
        product.forward(a.data_ptr(), b.data_ptr(), at_bias, c.data_ptr())
        return c

    @staticmethod
    def backward(ctx: Any, dc: Tensor) -> tuple[Tensor | None, ...]:
        check_first_order("products in bf16: train in fp32 (amp_level O0)")
        a, b = fused.saved_unchanged(ctx)
        dc, product = dc.contiguous(), onednn.prepared_matrices(ctx.factors, has_bias=ctx.given[2])
        da = db = dbias = None
        if ctx.learning[0]:
            da = new_tensor(a.shape)
            product.grad_a(dc.data_ptr(), b.data_ptr(), da.data_ptr())
        if ctx.learning[1]:
            db = new_tensor(b.shape)
            product.grad_b(a.data_ptr(), dc.data_ptr(), db.data_ptr())
        if ctx.learning[2]:
            dbias = round_to_grid(dc, BF16).sum(axis=list(range(dc.ndim - 1)))
        gradients = zip((da, db, dbias), ctx.given, strict=True)
        return tuple(gradient for gradient, given in gradients if given)


def _is_plain(x: Any) -> bool:
    return isinstance(x, Tensor) and is_float32(x) and x.place.is_cpu_place() and 0 not in x.shape


_FUNCTIONS = {
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise_conv2d,
    "linear": _linear,
    "matmul": _matmul,
    "__matmul__": _matmul,
}
