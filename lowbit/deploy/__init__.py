"""From a trained model to a served one: export, engines, inference, and the comparisons between them."""

from lowbit.deploy.autolog import StageTimer, benchmark_report
from lowbit.deploy.compare import Comparison, compare_logits, compare_outputs
from lowbit.deploy.engines import (
    Engine,
    EngineOptions,
    LayeredEngine,
    LowbitEngine,
    OnnxRuntimeEngine,
    OpenVinoEngine,
    PaddleEngine,
    open_onnx,
)
from lowbit.deploy.export import ExportedModel, export_model
from lowbit.deploy.infer import Prediction, evaluate_engine, find_images, infer_images, warm_up
from lowbit.deploy.model_files import (
    InferenceYml,
    ModelFiles,
    describe_inference,
    find_model_files,
    read_inference_yml,
    write_inference_yml,
)
from lowbit.deploy.onnx import OnnxModel, export_onnx
from lowbit.deploy.paddle_int8.export_int8 import Int8Export, export_paddle_int8

__all__ = [
    "Comparison",
    "Engine",
    "EngineOptions",
    "ExportedModel",
    "InferenceYml",
    "Int8Export",
    "LayeredEngine",
    "LowbitEngine",
    "ModelFiles",
    "OnnxModel",
    "OnnxRuntimeEngine",
    "OpenVinoEngine",
    "PaddleEngine",
    "Prediction",
    "StageTimer",
    "benchmark_report",
    "compare_logits",
    "compare_outputs",
    "describe_inference",
    "evaluate_engine",
    "export_model",
    "export_onnx",
    "export_paddle_int8",
    "find_images",
    "find_model_files",
    "infer_images",
    "open_onnx",
    "read_inference_yml",
    "warm_up",
    "write_inference_yml",
]
