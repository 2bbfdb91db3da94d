"""Converters of pooling, resizing and unfolding of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.deploy.onnx.converters.products import padding
from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph


@converts("pool2d")
def pool2d(op: Op, graph: Graph) -> Result:
    if op["data_format"] != "NCHW":
        raise op.refuse("pools images with the channels last")
    return _pool(op, graph, op["pooling_type"], op.ints(1, graph))


@converts("max_pool2d_with_index")
def max_pool2d_with_index(op: Op, graph: Graph) -> Result:
    """The maxima; who uses the indices gets an error."""
    return _pool(op, graph, "max", list(op["kernel_size"]))


def _pool(op: Op, graph: Graph, kind: str, kernel: list[int]) -> str:
    x, sizes = op.inputs[0], graph.shapes[op.inputs[0]][2:]
    if op["global_pooling"] or (op["adaptive"] and kernel == [1, 1]):
        name = "GlobalMaxPool" if kind == "max" else "GlobalAveragePool"
        return graph.add(name, [x], shape=op.shape)
    strides = list(op["strides"])
    if -1 in sizes:
        if op["adaptive"] or op["ceil_mode"]:
            raise op.refuse("pools images whose size is only known at run time")
        return _pool_any_size(op, graph, kind, kernel, strides)
    if op["adaptive"]:
        return _adaptive(op, graph, kind, kernel)
    pads = _pads(op, sizes, kernel, strides)
    # As far behind the image as the windows go (ceil_mode): engines disagree about that, not about padding.
    before = pads[:2]
    behind = [max(0, (op.shape[2 + i] - 1) * strides[i] + kernel[i] - sizes[i] - before[i]) for i in range(2)]
    if any(behind[i] >= kernel[i] for i in range(2)):
        raise op.refuse("has windows that lie outside of the image")
    if kind == "avg" and not op["exclusive"] and any(before):
        # Here zeros count, in Paddle as many behind as before the image; what lies beyond does not.
        counted = [min(behind[i], before[i]) for i in range(2)]
        zeros = graph.constant(np.array([0, 0, *before, 0, 0, *counted], np.int64))
        shape = [*graph.shapes[x][:2], *(sizes[i] + before[i] + counted[i] for i in range(2))]
        x, before = graph.add("Pad", [x, zeros], shape=shape), [0, 0]
        behind = [behind[i] - counted[i] for i in range(2)]
    pads = [*before, *behind]
    name = "MaxPool" if kind == "max" else "AveragePool"
    return graph.add(name, [x], shape=op.shape, kernel_shape=kernel, strides=strides, pads=pads)


def _pool_any_size(op: Op, graph: Graph, kind: str, kernel: list[int], strides: list[int]) -> str:
    """Windows that do not fit are left out, by ONNX's operators as by Paddle's."""
    x = op.inputs[0]
    pads = _pads(op, graph.shapes[x][2:], kernel, strides)
    name, more = (
        ("MaxPool", {}) if kind == "max" else ("AveragePool", {"count_include_pad": int(not op["exclusive"])})
    )
    return graph.add(name, [x], shape=op.shape, kernel_shape=kernel, strides=strides, pads=pads, **more)


def _pads(op: Op, sizes: list[int], kernel: list[int], strides: list[int]) -> list[int]:
    if "padding_algorithm" in op.attributes:
        return padding(op, sizes, kernel, strides)
    return list(op["paddings"]) * 2


def _adaptive(op: Op, graph: Graph, kind: str, out: list[int]) -> str:
    """Windows of one size where the image divides evenly; means over others as two matrix products."""
    x, shape = op.inputs[0], graph.shapes[op.inputs[0]]
    sizes = shape[2:]
    if all(size % wanted == 0 for size, wanted in zip(sizes, out, strict=True)):
        window = [size // wanted for size, wanted in zip(sizes, out, strict=True)]
        name = "MaxPool" if kind == "max" else "AveragePool"
        return graph.add(name, [x], shape=op.shape, kernel_shape=window, strides=window)
    if kind == "max":
        raise op.refuse(f"takes maxima over windows of different sizes ({sizes} to {out})")
    rows, columns = (graph.constant(_means(*pair)) for pair in zip(sizes, out, strict=True))
    wide = graph.add("MatMul", [x, columns], shape=[*shape[:3], out[1]])
    turned = graph.add("Transpose", [wide], shape=[*shape[:2], out[1], sizes[0]], perm=[0, 1, 3, 2])
    small = graph.add("MatMul", [turned, rows], shape=[*shape[:2], out[1], out[0]])
    return graph.add("Transpose", [small], shape=op.shape, perm=[0, 1, 3, 2])


def _means(size: int, out: int) -> np.ndarray:
    """[size, out]: the weights with which `out` adaptive windows take their means."""
    matrix = np.zeros([size, out], np.float32)
    for window in range(out):
        start, end = window * size // out, -(-(window + 1) * size // out)
        matrix[start:end, window] = 1 / (end - start)
    return matrix


# Interpolation: nearest, bilinear and bicubic.


@converts("nearest_interp")
def nearest(op: Op, graph: Graph) -> Result:
    if op["align_corners"]:
        return _resize(op, graph, "nearest", "align_corners", nearest_mode="round_prefer_ceil")
    return _resize(op, graph, "nearest", "asymmetric", nearest_mode="floor")


@converts("bilinear_interp")
def bilinear(op: Op, graph: Graph) -> Result:
    centred = "half_pixel" if op["align_mode"] == 0 else "asymmetric"
    return _resize(op, graph, "linear", "align_corners" if op["align_corners"] else centred)


@converts("bicubic_interp")
def bicubic(op: Op, graph: Graph) -> Result:
    coordinates = "align_corners" if op["align_corners"] else "half_pixel"
    return _resize(op, graph, "cubic", coordinates, cubic_coeff_a=-0.75)


def _resize(op: Op, graph: Graph, mode: str, coordinates: str, **more: Any) -> str:
    x = op.inputs[0]
    before, after = graph.shapes[x], op.shape
    if op["data_format"] != "NCHW":
        raise op.refuse("resizes images with the channels last")
    if -1 not in (*before[2:], *after[2:]):
        factors = [a / b for a, b in zip(after[2:], before[2:], strict=True)]
    elif op["scale"]:
        factors = list(op["scale"]) * (2 // len(op["scale"]))
    else:
        raise op.refuse("resizes images of a size only known at run time to a given size")
    scales = np.array([1, 1, *factors], np.float32)
    return graph.add(
        "Resize",
        [x, "", graph.constant(scales)],
        shape=op.shape,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        **more,
    )


@converts("unfold")
def unfold(op: Op, graph: Graph) -> Result:
    """Patches as columns [N, C·kh·kw, patches]: a convolution whose kernels pick one number each."""
    x = op.inputs[0]
    channels, sizes = graph.shapes[x][1], graph.shapes[x][2:]
    if -1 in (channels, *sizes):
        raise op.refuse("unfolds images whose size is only known at run time")
    height, width = op["kernel_sizes"]
    picks = np.eye(height * width, dtype=np.float32).reshape([-1, 1, height, width])
    weight = graph.constant(np.tile(picks, [channels, 1, 1, 1]))
    top, left, bottom, right = op["paddings"]
    strides, dilations = list(op["strides"]), list(op["dilations"])
    out = [
        (size + pads - dilation * (kernel - 1) - 1) // stride + 1
        for size, pads, dilation, kernel, stride in zip(
            sizes, (top + bottom, left + right), dilations, (height, width), strides, strict=True
        )
    ]
    rows = channels * height * width
    patches = graph.add(
        "Conv", [x, weight], shape=[graph.shapes[x][0], rows, *out], kernel_shape=[height, width],
        strides=strides, dilations=dilations, pads=[top, left, bottom, right], group=channels,
    )  # fmt: skip
    sizes_out = graph.constant(np.array([0, rows, out[0] * out[1]], np.int64))
    return graph.add("Reshape", [patches, sizes_out], shape=[graph.shapes[x][0], rows, out[0] * out[1]])


@converts("pixel_shuffle")
def pixel_shuffle(op: Op, graph: Graph) -> Result:
    if op["data_format"] != "NCHW":
        raise op.refuse("has the channels last")
    factor = op["upscale_factor"]
    return graph.add("DepthToSpace", [op.inputs[0]], shape=op.shape, blocksize=factor, mode="CRD")
