"""What examples print."""

from __future__ import annotations

from lowbit.deploy.onnx import resolve_target


def weight_type_here() -> str:
    """How an export for this processor, or the one that LOWBIT_CPU names, stores 8-bit weights."""
    return "UINT8" if resolve_target(None) == "avx2" else "INT8"
