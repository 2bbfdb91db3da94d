"""A processor held back to an older one's instructions, so that a machine can stand in for another.

It must not import Paddle: the settings are read when the libraries are loaded, or at their first call.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from lowbit.errors import LowbitError, did_you_mean

# What oneDNN (in Paddle and in PyTorch), MKL and PyTorch's own loops call the instruction set.
_SETTINGS = {
    "avx512vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
}


def hold_back(instructions: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have the libraries of all sides use no newer instructions; lowbit's kernels are told by `run_bench`.

    >>> environ = {}
    >>> hold_back("avx2", environ)
    >>> environ["ONEDNN_MAX_CPU_ISA"]
    'AVX2'
    """
    if instructions not in _SETTINGS:
        hint = did_you_mean(instructions, list(_SETTINGS))
        raise LowbitError(f'nothing can be held back to "{instructions}", {hint}')
    environ.update(_SETTINGS[instructions])
