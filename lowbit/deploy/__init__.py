"""From a trained model to a deployed one: export, engines, inference, comparison.

| module | has |
|---|---|
| `export`, `save_program` | export to Paddle Inference, compared with the model before it is used |
| `onnx/` | export to ONNX with the trained integers |
| `paddle_int8/` | int8 programs for Paddle Inference |
| `engines/` | Paddle Inference, ONNX Runtime, OpenVINO and lowbit's runtime behind one interface |
| `model_files` | the files of an exported model, and whether they are whole |
| `infer`, `autolog` | inference on images; the benchmark report of Paddle's chain test |
| `compare`, `gains` | difference from the trained model; speed and size against fp32 |
| `verify/` | whether the deployed model computes what was trained |
"""

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
