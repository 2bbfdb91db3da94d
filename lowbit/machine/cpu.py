"""The processor: vendor, model, the instructions that matter to us, and how much of it we may use."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from lowbit.machine.cgroup import cpu_limit, memory_limit

# Instruction sets that decide which kernel runs, slowest first, by their names in /proc/cpuinfo
# (x86: "flags"; Arm: "Features").
FEATURES = (
    "sse4_1",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


@dataclass(frozen=True, kw_only=True)
class CpuInfo:
    """What is known of the processor; `features` is None where it could not be found out (not Linux)."""

    vendor: str  # as the processor spells it: GenuineIntel, AuthenticAMD, …; "" when unknown
    model: str
    cores: int  # that this process may use: affinity and container limits count
    machine_cores: int
    memory: int  # bytes that this process may use
    features: frozenset[str] | None

    @property
    def is_amd(self) -> bool:
        return self.vendor == "AuthenticAMD"

    def has(self, feature: str) -> bool:
        """Whether the processor is known to have an instruction set.

        >>> CpuInfo(vendor="", model="", cores=1, machine_cores=1, memory=1, features=None).has("avx2")
        False
        """
        return self.features is not None and feature in self.features


@cache
def cpu_info() -> CpuInfo:
    """The processor of this machine; read once per process."""
    return read_cpu_info(Path("/"))


def read_cpu_info(root: Path) -> CpuInfo:
    """As `cpu_info`, from the `proc` and `sys` folders under `root`."""
    fields = _cpuinfo_fields(root / "proc/cpuinfo")
    flags = fields.get("flags") or fields.get("Features")
    machine_cores = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine_cores
    limit = cpu_limit(root)
    memory = psutil.virtual_memory().total
    return CpuInfo(
        vendor=fields.get("vendor_id", ""),
        model=fields.get("model name") or platform.processor() or platform.machine() or "unknown",
        cores=affinity if limit is None else min(affinity, max(1, math.ceil(limit))),
        machine_cores=machine_cores,
        memory=min(memory, memory_limit(root) or memory),
        features=None if flags is None else frozenset(flags.split()) & frozenset(FEATURES),
    )


def _cpuinfo_fields(path: Path) -> dict[str, str]:
    """The first processor's fields in Linux's cpuinfo; empty on other systems."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
