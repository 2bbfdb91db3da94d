"""lowbit's own inference runtime: exported ONNX files in integers, with nothing but NumPy.

`engine` runs a file; `reference` computes the same in plain NumPy, slowly, with the fp32 operators of
`reference_operators`. The C++ side, which programs in C can use as well, is `kernels/csrc/runtime/`.
"""

from pathlib import Path

from lowbit.runtime.engine import Engine

__all__ = ["HEADERS", "Engine"]

HEADERS = Path(__file__).parent  # the folder of lowbit_runtime.h, for programs in C
