"""lowbit's runtime against fp32 in ONNX Runtime and OpenVINO: ratios from interleaved runs.

    python benchmarks/runtime.py FP32.onnx QUANTIZED.onnx [QUANTIZED.onnx ...]
    python benchmarks/avx2_only.py benchmarks/runtime.py FP32.onnx QUANTIZED.onnx     # with AVX2 alone

Without files, a residual network with random weights is measured; `lowbit bench runtime` measures whole
models. One thread, batches of 1 and 16; a ratio is the time of the faster fp32 engine by that of lowbit's
runtime, each the fastest of all rounds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

from lowbit.extras import is_installed
from lowbit.kernels import kernels
from lowbit.runtime import Engine

BATCHES = (1, 16)
SECONDS = 8  # per batch size, all engines together


def open_onnxruntime(path: Path) -> Callable[[np.ndarray], object]:
    """ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})


def open_openvino(path: Path) -> Callable[[np.ndarray], object]:
    """OpenVINO on one thread, in fp32 also where the processor has faster formats."""
    import openvino

    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
    return lambda images: request.infer([images])


def fastest(engines: dict[str, Callable[[np.ndarray], object]], images: np.ndarray) -> dict[str, float]:
    """The least seconds of each engine; they run in turns until the time is up."""
    for run in engines.values():
        run(images)
    times: dict[str, list[float]] = {name: [] for name in engines}
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or not all(times.values()):
        for name, run in engines.items():
            for _ in range(3):
                start = time.perf_counter()
                run(images)
                times[name].append(time.perf_counter() - start)
    return {name: min(found) for name, found in times.items()}


def measure(fp32: Path, quantized: list[Path]) -> None:
    """Prints a line per file and batch size."""
    engines = {"ONNX Runtime": open_onnxruntime(fp32)}
    if is_installed("openvino"):
        engines["OpenVINO"] = open_openvino(fp32)
    rivals = list(engines)
    runtimes = {path.stem: Engine(path) for path in quantized}
    engines |= runtimes
    shape = [size or 1 for size in next(iter(runtimes.values())).input_shapes[0]]
    print(f"lowbit uses {kernels().variant}; one thread; fp32 is {fp32.name}")
    for batch in BATCHES:
        images = np.random.default_rng(0).standard_normal([batch, *shape[1:]]).astype(np.float32)
        found = fastest(engines, images)
        best = min(rivals, key=lambda name: found[name])
        for name in rivals:
            print(f"batch {batch:2}  {name:32} {1e3 * found[name]:8.2f} ms")
        for name, engine in runtimes.items():
            arena, weights = engine.memory(images)
            ratio = f"{found[best] / found[name]:.2f}x of {best}"
            memory = f"arena {arena} bytes, weights {weights}"
            print(f"batch {batch:2}  {name:32} {1e3 * found[name]:8.2f} ms  {ratio}; {memory}")


def example(folder: Path) -> tuple[Path, list[Path]]:
    """A residual network in fp32, and with 7 and 4 bits on every edge."""
    from tests.support.qdq import QdqGraph

    paths = []
    for bits in (32, 7, 4):
        graph = QdqGraph(["N", 3, 112, 112], 0)
        clip = (0, 15) if bits == 4 else None

        def edge(x: str, zero: int, graph=graph, bits=bits, clip=clip) -> str:
            scale = 0.6 if bits == 4 else 0.04
            return x if bits == 32 else graph.values(x, scale, zero // 16 if bits == 4 else zero, clip=clip)

        x = edge("x", 128)
        x = edge(graph.add("Relu", graph.conv(x, 64, 3, bits=min(bits, 8), strides=[2, 2], pads=[1] * 4)), 0)
        for channels, stride in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)]:
            y = graph.conv(x, channels, 3, bits=min(bits, 8), strides=[stride] * 2, pads=[1] * 4)
            y = edge(graph.add("Relu", y), 0)
            y = edge(graph.conv(y, channels, 3, bits=min(bits, 8), pads=[1] * 4), 128)
            if stride == 1:
                y = edge(graph.add("Relu", graph.add("Add", y, x)), 0)
            x = y
        mean = edge(graph.add("GlobalAveragePool", x), 0)
        paths.append(graph.save(folder / f"residual_{bits}.onnx", [mean]))
    return paths[0], paths[1:]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        measure(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    elif len(sys.argv) == 2:
        sys.exit(__doc__)
    else:
        with tempfile.TemporaryDirectory() as name:
            measure(*example(Path(name)))
