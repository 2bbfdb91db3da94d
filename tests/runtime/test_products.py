"""Convolutions and linear layers with everything that may follow them, against the NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowbit.runtime import Engine
from tests.support.qdq import QdqGraph, mixed_network

SOURCES = [
    (0, np.uint8, None),
    (128, np.uint8, None),
    (0, np.int8, None),
    (3, np.uint8, (0, 15)),
    (7, np.int8, (-8, 7)),
]
many = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def geometries(draw):
    """Channels, kernel and attributes of a convolution over images of 9 x 7."""
    group = draw(st.sampled_from([1, 1, 1, 2, 3]))
    inputs, outputs = (group * draw(st.integers(1, 21)) for _ in range(2))
    if draw(st.booleans()):
        group = outputs = inputs  # depthwise
    kernel = draw(st.integers(1, 3))
    attributes = {
        "strides": draw(st.lists(st.integers(1, 3), min_size=2, max_size=2)),
        "dilations": draw(st.lists(st.integers(1, 2), min_size=2, max_size=2)),
        "pads": draw(st.lists(st.integers(0, 3), min_size=4, max_size=4)),
    }
    return inputs, outputs, kernel, attributes | {"group": group}


@many
@given(
    geometry=geometries(),
    source=st.sampled_from(SOURCES),
    bits=st.sampled_from([4, 7, 8]),
    bias=st.sampled_from(["inside", "behind", "none"]),
    activation=st.sampled_from(["", "Relu", "Clip", "HardSwish", "HardSigmoid", "Sigmoid"]),
    tail=st.sampled_from(["float", "bytes", "sum", "rounded sum", "table"]),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_convolutions(agrees, tmp_path, geometry, source, bits, bias, activation, tail, batch, seed):
    inputs, outputs, kernel, attributes = geometry
    zero, kind, clip = source
    graph = QdqGraph(["N", inputs, 9, 7], seed)
    x = graph.values("x", 0.02 if clip is None else 0.3, zero, kind, clip)
    y = graph.conv(x, outputs, kernel, bits=bits, bias=bias == "inside", unsigned=zero == 128, **attributes)
    if bias == "behind":
        y = graph.add(
            "Add", y, graph.constant(graph.rng.standard_normal([1, outputs, 1, 1]).astype(np.float32))
        )
    if activation == "Clip":
        y = graph.add("Clip", y, graph.constant(np.float32(-0.3)), graph.constant(np.float32(0.9)))
    elif activation:
        y = graph.add(activation, y)
    if tail in ("sum", "rounded sum"):
        # The same convolution's output once more, quantized, is added.
        other = graph.values(graph.conv(x, outputs, kernel, bits=8, **attributes), 0.05, 100)
        y = graph.values(y, 0.03, 90) if tail == "rounded sum" else y
        y = graph.add("Relu", graph.add("Add", y, other))
    if tail == "table":
        y = graph.add("Tanh", graph.values(y, 0.03, 90))
    if tail != "float":
        y = graph.values(y, 0.017, 11, clip=(2, 250) if seed % 2 else None)
    path = graph.save(tmp_path / "conv.onnx", [y])
    agrees(path, graph.images(batch))


@many
@given(
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 40),
    bits=st.sampled_from([4, 7, 8]),
    bias=st.booleans(),
    rounded=st.booleans(),
    ranks=st.sampled_from([[], [5]]),
    batch=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
def test_linear_layers(agrees, tmp_path, inputs, outputs, bits, bias, rounded, ranks, batch, seed):
    graph = QdqGraph(["N", *ranks, inputs], seed)
    graph.channels["x"] = inputs
    y = graph.linear(graph.values("x", 0.02, 128), outputs, bits=bits, bias=bias)
    y = graph.values(graph.add("Relu", y), 0.02) if rounded else y
    agrees(graph.save(tmp_path / "linear.onnx", [y]), graph.images(batch))


@pytest.mark.parametrize("rank", [3, 4])
def test_products_of_activations(agrees, tmp_path, rank):
    graph = QdqGraph(["N", *([2] * (rank - 3)), 6, 5], 1)
    x = graph.values("x", 0.02, 100)
    y = graph.values("x", 0.03, -3, np.int8)
    turned = graph.add("Transpose", y, perm=[*range(rank - 2), rank - 1, rank - 2])
    turned = graph.values(turned, 0.03, -3, np.int8)
    product = graph.values(graph.add("MatMul", x, turned), 0.1, 77)
    agrees(graph.save(tmp_path / "products.onnx", [product]), graph.images(3))


def test_extreme_sums_are_exact(agrees, tmp_path):
    """All operands at their largest magnitudes, where 16-bit sums would saturate."""
    graph = QdqGraph(["N", 64, 3, 3], 0)
    x = graph.values("x", 1.0)
    for value in (-128, 127):
        weight = graph.constant(np.full([16, 64, 3, 3], value, np.int8))
        weight = graph.add(
            "DequantizeLinear", weight, graph.constant(np.float32(1)), graph.constant(np.int8(0))
        )
        x = graph.values(graph.add("Conv", x, weight, pads=[1, 1, 1, 1]), 100.0, 128) if value > 0 else x
        graph.channels[x] = 64
        final = graph.add("Conv", graph.values("x", 1.0), weight, pads=[1, 1, 1, 1])
    path = graph.save(tmp_path / "extreme.onnx", [x, final])
    agrees(path, np.full([2, 64, 3, 3], 1000, np.float32))


@pytest.mark.parametrize("channels", [16, 17, 32, 40, 56, 80])
@pytest.mark.parametrize(("kernel", "bits"), [(3, 8), (5, 7), (5, 4)])
def test_depthwise_layers_of_many_channels(agrees, tmp_path, channels, kernel, bits):
    graph = QdqGraph(["N", channels, 11, 9], channels + kernel)
    x = graph.values("x", 0.02, 117)
    y = graph.conv(x, channels, kernel, bits=bits, group=channels, strides=[1, 2], pads=[2] * 4)
    y = graph.values(graph.add("HardSwish", graph.values(y, 0.03, 100)), 0.02, 20)
    agrees(graph.save(tmp_path / "m.onnx", [y]), graph.images(2))


@pytest.mark.parametrize("zero", [0, 128])
def test_images_of_three_channels_with_large_weights(agrees, tmp_path, zero):
    """The first channel is stored twice, so that its weight can be divided."""
    graph = QdqGraph(["N", 3, 13, 12], zero)
    x = graph.values("x", 0.02, zero)
    signs = graph.rng.choice([-127, -90, -60, 0, 60, 90, 127], [40, 3, 7, 7]).astype(np.int8)
    signs[:8] = 127
    parts = (signs, np.full(40, 0.001, np.float32), np.zeros(40, np.int8))
    weight = graph.add("DequantizeLinear", *map(graph.constant, parts), axis=0)
    y = graph.add("Conv", x, weight, pads=[3] * 4, strides=[2, 2])
    images = graph.images(2, scale=3.0)
    images[0] = np.where(images[0] > 0, 9, -9)
    agrees(graph.save(tmp_path / "m.onnx", [y, graph.values(y, 0.5, 90)]), images)


@pytest.mark.parametrize("bits", [4, 7, 8])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_whole_network(agrees, tmp_path, bits, batch):
    graph = mixed_network(tmp_path / "net.onnx", bits=bits)
    agrees(tmp_path / "net.onnx", graph.images(batch))


def test_nothing_of_a_quantized_network_runs_in_floats(tmp_path):
    graph = mixed_network(tmp_path / "net.onnx")
    steps = Engine(tmp_path / "net.onnx").steps(graph.images())
    assert len(steps) == 15 and not [step for step in steps if "fp32" in step], "\n".join(steps)


def test_four_bits_take_half_the_memory_of_weights(tmp_path):
    sizes = {}
    for bits in (4, 8):
        graph = QdqGraph([1, 64, 8, 8], bits)
        graph.save(
            tmp_path / "net.onnx", [graph.conv(graph.values("x", 0.1, clip=(0, 15)), 64, 3, bits=bits)]
        )
        sizes[bits] = Engine(tmp_path / "net.onnx").memory(graph.images())[1]
    assert sizes[4] == 64 * 64 * 9 / 2 and sizes[8] in (64 * 64 * 9, 2 * 64 * 64 * 9)
