"""The AMD fix: Paddle's matrix library (an old MKL) takes a slow path on AMD processors unless told not to.

`MKL_DEBUG_CPU_TYPE=5` makes it take its AVX2 path; ResNet18 trains 2.7 times faster with it on a Zen 3.
The library reads the setting at its first matrix product, so it must be in the environment before that;
child processes inherit it. On Intel the library chooses well by itself, and the setting could only hold it
back from AVX-512, so it is never made there. It changes the last bits of results, so checkpoints record it
(`training/environment.py`).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import Enum

from lowbit.errors import LowbitError
from lowbit.machine.cpu import CpuInfo, check_executable, cpu_info

SETTING = "MKL_DEBUG_CPU_TYPE"
AVX2_PATH = "5"
SWITCH = "LOWBIT_AMD_FIX"

_ON = ("", "1", "on", "true", "yes")
_OFF = ("0", "off", "false", "no")


class FixStatus(Enum):
    APPLIED = "applied"
    ALREADY_SET = "already set"  # by the user, or by the lowbit process that started this one
    NOT_NEEDED = "not needed"
    SWITCHED_OFF = "switched off"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class AmdFix:
    """What was done about the matrix library, and the line that says so."""

    status: FixStatus
    message: str

    @property
    def worth_logging(self) -> bool:
        """Everything but the normal case of a processor that needs nothing."""
        return self.status is not FixStatus.NOT_NEEDED


def apply_amd_fix(cpu: CpuInfo | None = None, environ: MutableMapping[str, str] | None = None) -> AmdFix:
    """Make the matrix library take its fast path on AMD; call it before the first matrix product.

    >>> apply_amd_fix().message  # doctest: +SKIP
    'AMD fix applied: MKL_DEBUG_CPU_TYPE=5 (LOWBIT_AMD_FIX=0 switches it off)'
    """
    environ = os.environ if environ is None else environ
    fix = decide_amd_fix(cpu, environ)
    if fix.status is FixStatus.APPLIED:
        if cpu is None:
            check_executable("avx2", "fma")
        environ[SETTING] = AVX2_PATH
    return fix


def decide_amd_fix(cpu: CpuInfo | None = None, environ: MutableMapping[str, str] | None = None) -> AmdFix:
    """What `apply_amd_fix` would do, without doing it."""
    cpu = cpu or cpu_info()
    environ = os.environ if environ is None else environ
    switch = environ.get(SWITCH, "").strip().lower()
    if switch not in _ON + _OFF:
        raise LowbitError(
            f"{SWITCH}={environ[SWITCH]} is not understood; use 0 to switch the AMD fix off, 1 for on"
        )
    if value := environ.get(SETTING):
        in_place = cpu.is_amd and value == AVX2_PATH
        said = "AMD fix in place" if in_place else "matrix library"
        return AmdFix(
            FixStatus.ALREADY_SET, f"{said}: {SETTING}={value} is in the environment, left as it is"
        )
    if not cpu.is_amd:
        vendor = cpu.vendor or "of unknown vendor"
        return AmdFix(FixStatus.NOT_NEEDED, f"AMD fix not needed: this processor is {vendor}")
    if switch in _OFF:
        return AmdFix(
            FixStatus.SWITCHED_OFF,
            f"AMD fix switched off by {SWITCH}={environ[SWITCH]}: matrix products take the slow path",
        )
    if not (cpu.has("avx2") and cpu.has("fma")):  # the forced path would end the process: illegal instruction
        return AmdFix(
            FixStatus.IMPOSSIBLE,
            "AMD fix not applied: this AMD processor has no AVX2 and FMA, which it needs",
        )
    return AmdFix(FixStatus.APPLIED, f"AMD fix applied: {SETTING}={AVX2_PATH} ({SWITCH}=0 switches it off)")
