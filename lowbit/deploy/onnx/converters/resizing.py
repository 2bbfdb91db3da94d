"""Images made larger or smaller: nearest and bilinear interpolation."""

from __future__ import annotations

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph


@converts("nearest_interp")
def nearest(op: Op, graph: Graph) -> Result:
    if op["align_corners"]:
        return _resize(op, graph, "nearest", "align_corners", nearest_mode="round_prefer_ceil")
    return _resize(op, graph, "nearest", "asymmetric", nearest_mode="floor")


@converts("bilinear_interp")
def bilinear(op: Op, graph: Graph) -> Result:
    centred = "half_pixel" if op["align_mode"] == 0 else "asymmetric"
    return _resize(op, graph, "linear", "align_corners" if op["align_corners"] else centred)


def _resize(op: Op, graph: Graph, mode: str, coordinates: str, **more: str) -> str:
    x = op.inputs[0]
    before, after = graph.shapes[x], op.shape
    if op["data_format"] != "NCHW" or -1 in (*before[1:], *after[1:]):
        raise op.refuse("resizes images with the channels last, or of a size only known at run time")
    scales = np.array([1, 1, *(a / b for a, b in zip(after[2:], before[2:], strict=True))], np.float32)
    return graph.add(
        "Resize",
        [x, "", graph.constant(scales)],
        shape=op.shape,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        **more,
    )
