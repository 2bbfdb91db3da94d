"""Operators in fp32 and on shapes, one by one, against the NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.errors import LowbitError
from lowbit.runtime import Engine
from tests.support.qdq import QdqGraph

f32 = np.float32
UNARY = {
    "LeakyRelu": {"alpha": 0.2},
    "HardSigmoid": {"alpha": 0.3},
    "Relu": {},
    "HardSwish": {},
    "Elu": {},
    "Sigmoid": {},
    "Tanh": {},
    "Erf": {},
    "Exp": {},
    "Softplus": {},
    "Softsign": {},
    "Mish": {},
    "Gelu": {},
    "Abs": {},
    "Neg": {},
    "Floor": {},
    "Ceil": {},
    "Round": {},
    "Reciprocal": {},
    "Identity": {},
}
IMAGES = {
    "MaxPool": {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "ceil_mode": 1},
    "AveragePool": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "count_include_pad": 1},
    "GlobalAveragePool": {},
    "GlobalMaxPool": {},
    "Softmax": {"axis": 1},
    "Flatten": {},
    "Transpose": {"perm": [0, 2, 3, 1]},
}


@pytest.mark.parametrize("kind", [*UNARY, *IMAGES])
@pytest.mark.parametrize("source", ["floats", "integers"])
def test_operators_of_one_tensor(agrees, tmp_path, kind, source):
    """On floats in fp32; between quantizations as a table or a step on bytes, where there is one."""
    graph = QdqGraph(["N", 5, 8, 7], 3)
    x = "x" if source == "floats" else graph.values("x", 0.03, 120)
    y = graph.add(kind, x, **{**UNARY, **IMAGES}[kind])
    y = y if source == "floats" else graph.values(y, 0.02, 60)
    path = graph.save(tmp_path / "op.onnx", [y])
    images = graph.images(2)
    agrees(path, np.abs(images) + 0.1 if kind == "Reciprocal" else images, threads=(1,))


@pytest.mark.parametrize("kind", ["Log", "Sqrt"])
def test_functions_of_positive_numbers(agrees, tmp_path, kind):
    graph = QdqGraph(["N", 5, 8, 7], 3)
    path = graph.save(tmp_path / "op.onnx", [graph.add(kind, "x")])
    agrees(path, np.abs(graph.images(2)) + f32(0.1), threads=(1,))


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu"])
@pytest.mark.parametrize("shape", [[], [7], [5, 1, 1], [1, 5, 8, 7]])
def test_arithmetic_with_broadcasting(agrees, tmp_path, kind, shape):
    graph = QdqGraph(["N", 5, 8, 7], 4)
    other = graph.constant(graph.rng.uniform(0.5, 2, shape).astype(f32))
    x = graph.add("Abs", "x") if kind == "Pow" else "x"
    path = graph.save(tmp_path / "op.onnx", [graph.add(kind, x, other)])
    agrees(path, graph.images(2), threads=(1,))


def test_layers_in_fp32(agrees, tmp_path):
    graph = QdqGraph(["N", 6, 8, 7], 5)
    random = lambda *shape: graph.constant(graph.rng.standard_normal(shape).astype(f32))  # noqa: E731
    y = graph.add(
        "Conv",
        "x",
        random(4, 3, 3, 2),
        random(4),
        group=2,
        strides=[2, 1],
        pads=[1, 1, 0, 2],
        dilations=[1, 2],
    )
    y = graph.add("BatchNormalization", y, *(random(4) for _ in range(3)), graph.constant(f32([1, 2, 3, 4])))
    z = graph.add(
        "ConvTranspose",
        y,
        random(4, 3, 3, 3),
        random(6),
        group=2,
        strides=[2, 2],
        pads=[1, 0, 1, 1],
        output_padding=[1, 0],
    )
    mean = graph.add("ReduceMean", z, graph.constant(np.array([2, 3])), keepdims=0)
    out = graph.add("Gemm", mean, random(9, 6), random(9), transB=1, alpha=0.5, beta=2.0)
    out = graph.add("LayerNormalization", out, random(9), random(9))
    out = graph.add("MatMul", graph.add("Unsqueeze", out, graph.constant(np.array([1]))), random(9, 4))
    path = graph.save(tmp_path / "op.onnx", [z, out])
    agrees(path, graph.images(3))


def test_shapes_are_folded(agrees, tmp_path):
    """A reshape whose sizes come out of the tensor's own, as exporters write it."""
    graph = QdqGraph(["N", 5, 8, 7], 6)
    sizes = graph.add("Slice", graph.add("Shape", "x"), *(graph.constant(np.array([n])) for n in (0, 2)))
    wanted = graph.add("Concat", sizes, graph.constant(np.array([-1])), axis=0)
    y = graph.add("Reshape", "x", wanted)
    first = graph.add("Gather", y, graph.constant(np.array([1, -1])), axis=1)
    padded = graph.add("Pad", first, graph.constant(np.array([0, 1, 2, 0, 0, 3])), graph.constant(f32(7)))
    wide = graph.add(
        "Expand",
        graph.add("Unsqueeze", padded, graph.constant(np.array([0]))),
        graph.constant(np.array([2, 1, 1, 1])),
    )
    path = graph.save(tmp_path / "op.onnx", [y, wide])
    assert not any("Shape" in step for step in Engine(path).steps(graph.images(2)))
    agrees(path, graph.images(2), threads=(1,))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("place", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("size", [[11, 14], [4, 3], [1, 1]])
def test_resizing(agrees, tmp_path, mode, place, size):
    graph = QdqGraph(["N", 2, 8, 7], 7)
    scales = graph.constant(f32([1, 1, size[0] / 8, size[1] / 7]))
    y = graph.add("Resize", "x", "", scales, mode=mode, coordinate_transformation_mode=place)
    z = graph.add(
        "Resize", "x", "", scales, mode=mode, coordinate_transformation_mode=place, nearest_mode="floor"
    )
    agrees(graph.save(tmp_path / "op.onnx", [y, z]), graph.images(2), threads=(1,))


def test_an_unknown_operator_is_named(tmp_path):
    graph = QdqGraph(["N", 3, 4, 4])
    path = graph.save(tmp_path / "op.onnx", [graph.add("Cos", "x")])
    with pytest.raises(LowbitError, match=r'operator Cos \(node "Cos_t0"\) is not supported'):
        Engine(path)(graph.images())
