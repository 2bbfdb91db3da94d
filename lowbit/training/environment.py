"""What changes the last bits of a result: saved with a checkpoint, compared when it is resumed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lowbit.kernels import kernels
from lowbit.machine.cpu import hardware_info
from lowbit.machine.matrix_library import SETTING

# Each of these alters the order or width of sums inside Paddle's libraries.
_SETTINGS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    SETTING,
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "FLAGS_cudnn_deterministic",
    "NVIDIA_TF32_OVERRIDE",
)


def environment_record() -> dict[str, str]:
    """Versions, processor and thread settings as plain strings; two equal records promise equal bits.

    Imports Paddle first, because that sets OMP_NUM_THREADS to 1 where the user has not set it. Call it after
    `apply_amd_fix`.
    """
    import numpy
    import paddle

    cpu = hardware_info()
    record = {
        "paddle": f"{paddle.__version__} ({paddle.version.commit})",
        "numpy": numpy.__version__,
        "cpu": f"{cpu.vendor} {cpu.model}".strip(),
        "cpu_features": "unknown" if cpu.features is None else " ".join(sorted(cpu.features)),
        "kernels": "none" if kernels() is None else "C++",  # all their variants give the same bits
        "device": paddle.device.get_device().split(":")[0],
    }
    if record["device"] == "gpu":
        record["gpu"] = paddle.device.cuda.get_device_name()
        record["cuda"] = f"{paddle.version.cuda()} (cuDNN {paddle.version.cudnn()})"
    return record | {name: os.environ.get(name, "unset") for name in _SETTINGS}


def environment_differences(saved: Mapping[str, str], now: Mapping[str, str] | None = None) -> list[str]:
    """One phrase per difference between a saved record and this process's; empty when bits will be equal.

    >>> environment_differences({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"})
    ['OMP_NUM_THREADS was 2, is 1']
    """
    now = environment_record() if now is None else now
    return [
        f"{key} was {saved.get(key, 'not recorded')}, is {now.get(key, 'not recorded')}"
        for key in sorted(saved.keys() | now.keys())
        if saved.get(key) != now.get(key)
    ]
