"""Converters of Paddle's operators to ONNX: functions under `@converts("name")`, listed by `registry`.

By kind: `products`, `normalization`, `elementwise`, `constants`, `reductions`, `shapes`, `slices`,
`indexing`, `spatial`.
"""

from lowbit.deploy.onnx.converters import (  # noqa: F401
    constants,
    elementwise,
    indexing,
    normalization,
    products,
    reductions,
    shapes,
    slices,
    spatial,
)
from lowbit.deploy.onnx.converters.registry import Op, Result, find_converter, operator_names

__all__ = ["Op", "Result", "find_converter", "operator_names"]
