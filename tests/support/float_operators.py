"""What engines compute in floats, by their own profilers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import openvino

_FLOATS = ("float", "float16", "double")


def in_onnxruntime(path: Path, images: np.ndarray) -> Counter[str]:
    """The operators that gave floats between the image and the last layer, as its profiler recorded them."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(path.with_suffix(".profile"))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, {session.get_inputs()[0].name: images})
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    found: Counter[str] = Counter()
    for event in kernels[:-1]:  # the last one gives the logits
        types = {name for one in event["args"]["output_type_shape"] for name in one}
        if types & set(_FLOATS):
            found[event["args"]["op_name"]] += 1
    return found


def in_openvino(path: Path, images: np.ndarray) -> Counter[str]:
    """The operators that ran on floats behind the rounding of the image, as its profiler recorded them."""
    core = openvino.Core()
    settings = {"PERF_COUNT": True, "INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(str(path)), "CPU", settings).create_infer_request()
    request.infer([images])
    ran = [one for one in request.get_profiling_info() if one.status.name == "EXECUTED"]
    found = Counter(
        one.node_type
        for one in ran
        if one.exec_type.rpartition("_")[2].lower() in ("f32", "fp32", "f16", "bf16")
    )
    found.subtract({"FakeQuantize": 1})  # of the image
    del found["Reorder"]  # moves numbers into another layout
    return +found
