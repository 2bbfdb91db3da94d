"""ONNX files with the integers that were trained: trace, convert, fold, quantize, write, compare."""

from lowbit.deploy.onnx.export import OnnxModel, export_onnx
from lowbit.deploy.onnx.quantize import TARGETS, Target, resolve_target

__all__ = ["TARGETS", "OnnxModel", "Target", "export_onnx", "resolve_target"]
