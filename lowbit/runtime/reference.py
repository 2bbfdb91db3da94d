"""What the runtime computes, in plain NumPy: an ONNX file, operator after operator, slowly.

It is the readable twin of `kernels/csrc/runtime/`: tests compare the two bit by bit. Products and means of
quantized tensors have exact integer sums; everything else is fp32, without fused operations, in this order:

    product      v = float32(sum) * (input scale * weight scale) + bias
    mean         v = float32(sum) * scale / float32(count)
    requantize   q = clip(rint(v / scale), lowest - zero, highest - zero) + zero, rint to even

Sums of floats are added one after the other, in the order of input channels, kernel rows and kernel columns.
Other means, norms and softmax, and functions such as the exponential, are computed in fp64 and rounded once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.errors import LowbitError
from lowbit.runtime.reference_operators import OPERATORS, conv, split, windows

_F = np.float32


@dataclass(frozen=True)
class _Integers:
    """Integers without their zero point; the scale is one number, or one per entry of an axis."""

    values: np.ndarray  # int64
    scale: np.ndarray


def run_reference(
    path: str | os.PathLike[str], inputs: Mapping[str, np.ndarray], names: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """The tensors of these names (by default the outputs) for inputs by name. Needs the package `onnx`.

    run_reference("inference.onnx", {"x": images})["logits"]
    """
    import onnx

    graph = onnx.load(os.fspath(path)).graph
    values: dict[str, np.ndarray] = {one.name: _constant(one) for one in graph.initializer}
    values.update(inputs)
    integers: dict[str, _Integers] = {}  # of the outputs of DequantizeLinear
    for node in graph.node:
        given: list[Any] = [values.get(name) if name else None for name in node.input]
        attributes = {one.name: _attribute(one) for one in node.attribute}
        if node.op_type == "Constant":
            values[node.output[0]] = attributes["value"]
            continue
        exact = [integers.get(name) for name in node.input]
        if node.op_type == "DequantizeLinear":
            integers[node.output[0]] = _integers(*given, **attributes)
        made = _compute(node.op_type, given, exact, attributes, len(node.output))
        values.update(zip(node.output, made, strict=False))
    return {name: values[name] for name in names or [one.name for one in graph.output]}


def _constant(tensor: Any) -> np.ndarray:
    from onnx import numpy_helper

    array = numpy_helper.to_array(tensor)
    if array.dtype.name in ("int4", "uint4"):
        return array.astype(np.int8 if array.dtype.name == "int4" else np.uint8)
    return array


def _attribute(attribute: Any) -> Any:
    from onnx import helper

    value = helper.get_attribute_value(attribute)
    if attribute.name == "value" and hasattr(value, "dims"):
        return _constant(value)
    return value.decode() if isinstance(value, bytes) else value


def _compute(
    kind: str,
    given: list[Any],
    exact: list[_Integers | None],
    attributes: dict[str, Any],
    outputs: int,
) -> list[np.ndarray]:
    if kind in ("Conv", "MatMul", "Gemm") and exact[0] is not None and exact[1] is not None:
        return [_integer_product(kind, exact[0], exact[1], given, attributes)]
    if kind in _MEANS and exact[0] is not None and given[0].ndim == 4:
        found = _integer_mean(kind, exact[0], given, attributes)
        if found is not None:
            return [found]
    if kind == "Split":
        return split(given, attributes, outputs)
    own = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
    operator = own.get(kind) or OPERATORS.get(kind)
    if operator is None:
        raise LowbitError(f"the reference does not know the operator {kind}")
    return [operator(*given, **attributes)]


# ----------------------------------------------------------------------------------------------------------
# Integers.


def _along(scale: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    if scale.size == 1:
        return scale.reshape([1] * ndim)
    shape = [1] * ndim
    shape[axis] = -1
    return scale.reshape(shape)


def _integers(x: np.ndarray, scale: np.ndarray, zero: Any = None, axis: int = 1) -> _Integers:
    whole = x.astype(np.int64)
    if zero is not None:
        whole = whole - _along(np.asarray(zero).astype(np.int64), axis, x.ndim)
    return _Integers(whole, _along(scale, axis, x.ndim))


def _dequantize(x: np.ndarray, scale: np.ndarray, zero: Any = None, axis: int = 1) -> np.ndarray:
    found = _integers(x, scale, zero, axis)
    return found.values.astype(_F) * found.scale


def _quantize(x: np.ndarray, scale: np.ndarray, zero: Any = None, axis: int = 1, **_: Any) -> np.ndarray:
    kind = np.uint8 if zero is None else zero.dtype.type
    zero = np.zeros_like(scale) if zero is None else np.asarray(zero).astype(_F)
    zero, scale = _along(zero, axis, x.ndim), _along(scale, axis, x.ndim)
    steps = np.rint(np.clip(x / scale, np.iinfo(kind).min - zero, np.iinfo(kind).max - zero))
    return (steps + zero).astype(kind)


def _integer_product(
    kind: str, x: _Integers, w: _Integers, given: list[Any], attributes: dict[str, Any]
) -> np.ndarray:
    if kind == "Conv":
        sums = conv(x.values, w.values, None, add=np.int64, **attributes)
        scale = x.scale.reshape(()) * w.scale.reshape([-1])  # one per output channel
        v = sums.astype(_F) * scale.reshape([1, -1, 1, 1])
        return v if len(given) < 3 else v + given[2].reshape([1, -1, 1, 1])
    a, b, b_scale = x.values, w.values, w.scale
    if attributes.get("transB"):
        b, b_scale = b.T, b_scale.T
    v = (a @ b).astype(_F) * (x.scale.reshape(()) * b_scale.reshape([-1] if b_scale.size > 1 else ()))
    return v if len(given) < 3 else v + given[2]


_MEANS = ("GlobalAveragePool", "AveragePool", "ReduceMean")


def _integer_mean(kind: str, x: _Integers, given: list[Any], attributes: dict[str, Any]) -> np.ndarray | None:
    scale = x.scale.reshape(())
    if kind == "AveragePool":
        sums, count = windows(x.values, np.add, 0, **attributes)
        return sums.astype(_F) * scale / count.astype(_F)
    if kind == "ReduceMean":
        axes = given[1] if len(given) > 1 else attributes["axes"]
        if sorted(int(axis) % 4 for axis in axes) != [2, 3]:
            return None
    keep = bool(attributes.get("keepdims", 1)) or kind == "GlobalAveragePool"
    sums = x.values.sum(axis=(2, 3), keepdims=keep)
    return sums.astype(_F) * scale / _F(x.values.shape[2] * x.values.shape[3])
