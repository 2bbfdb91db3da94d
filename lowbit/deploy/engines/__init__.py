"""The programs that run an exported model, behind the interface of `engine`.

One module per engine: `paddle_engine`, `onnxruntime_engine`, `openvino_engine`, `lowbit_engine`.
"""

from __future__ import annotations

from pathlib import Path

from lowbit.deploy.engines.engine import Engine, EngineOptions, LayeredEngine, Signature, TensorInfo
from lowbit.deploy.engines.lowbit_engine import LowbitEngine
from lowbit.deploy.engines.onnxruntime_engine import OnnxRuntimeEngine
from lowbit.deploy.engines.openvino_engine import OpenVinoEngine
from lowbit.deploy.engines.paddle_engine import PaddleEngine
from lowbit.errors import LowbitError, did_you_mean

__all__ = [
    "Engine",
    "EngineOptions",
    "LayeredEngine",
    "LowbitEngine",
    "OnnxRuntimeEngine",
    "OpenVinoEngine",
    "PaddleEngine",
    "Signature",
    "TensorInfo",
    "open_onnx",
]

_ONNX_ENGINES = {"onnxruntime": OnnxRuntimeEngine, "openvino": OpenVinoEngine, "lowbit": LowbitEngine}


def open_onnx(path: str | Path, engine: str | None = None, *, threads: int | None = None) -> LayeredEngine:
    """An ONNX file in the engine of this name, by default ONNX Runtime; of a folder, its `inference.onnx`.

    open_onnx("runs/digits/export", "lowbit").run(images)
    """
    key = "onnxruntime" if engine is None else engine
    if key not in _ONNX_ENGINES:
        raise LowbitError(f'no engine "{key}" for ONNX files; {did_you_mean(key, _ONNX_ENGINES)}')
    path = Path(path)
    file = path / "inference.onnx" if path.is_dir() else path
    return _ONNX_ENGINES[key](file, threads=threads)
