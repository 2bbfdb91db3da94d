"""ONNX files with the integers that were trained: trace, convert, fold, quantize, write, compare."""

from lowbit.deploy.onnx.export_onnx import OnnxModel, export_onnx
from lowbit.deploy.onnx.qdq import TARGETS, Target, resolve_target

__all__ = ["TARGETS", "OnnxModel", "Target", "export_onnx", "resolve_target"]
