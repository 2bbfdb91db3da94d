"""The programs that run an exported model, behind one interface."""

from lowbit.deploy.engines.engine import Engine, EngineOptions, LayeredEngine, Signature, TensorInfo
from lowbit.deploy.engines.onnxruntime_engine import OnnxRuntimeEngine
from lowbit.deploy.engines.openvino_engine import OpenVinoEngine
from lowbit.deploy.engines.paddle_engine import PaddleEngine

__all__ = [
    "Engine",
    "EngineOptions",
    "LayeredEngine",
    "OnnxRuntimeEngine",
    "OpenVinoEngine",
    "PaddleEngine",
    "Signature",
    "TensorInfo",
]
