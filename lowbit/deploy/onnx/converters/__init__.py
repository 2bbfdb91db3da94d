"""One small function per Paddle operator, which adds ONNX's operators for it to a graph."""

from lowbit.deploy.onnx.converters import (  # noqa: F401, registered by being imported
    constants,
    elementwise,
    normalization,
    pooling,
    products,
    reductions,
    resizing,
    shapes,
)
from lowbit.deploy.onnx.converters.registry import Op, Result, find_converter, operator_names

__all__ = ["Op", "Result", "find_converter", "operator_names"]
