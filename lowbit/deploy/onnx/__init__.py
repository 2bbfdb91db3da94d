"""ONNX files with the integers that were trained. Start with `export_onnx`.

| module | has |
|---|---|
| `export_onnx` | a model to an ONNX file, compared with it before the file is used |
| `trace`, `converters/` | the model as a program; one function for each of Paddle's operators |
| `graph` | the graph in between, and writing it |
| `fold` | each layer's integers, with batch norm folded |
| `targets` | integer types per target |
| `qdq` | QuantizeLinear and DequantizeLinear, integers of weights and biases |
| `moved` | integers through operators that only move values; what keeps OpenVINO from moving scales |
"""

from lowbit.deploy.onnx.export_onnx import OnnxModel, export_onnx
from lowbit.deploy.onnx.targets import TARGETS, Target, resolve_target

__all__ = ["TARGETS", "OnnxModel", "Target", "export_onnx", "resolve_target"]
