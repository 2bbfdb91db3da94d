"""The processor: vendor, model, the instructions that matter to us, and how much of it we may use.

`cpu_info` is what lowbit decides by: export target, instruction set of the kernels, AMD fix. It describes
this machine, unless LOWBIT_CPU names another processor (`PROCESSORS`): then every decision is taken as there.
`hardware_info` is always this machine. Instructions that it lacks are a LowbitError where they would have to
be executed; the inference engines always see this machine.
"""

from __future__ import annotations

import math
import os
import platform
import time
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import psutil

from lowbit.errors import LowbitError, did_you_mean

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

CPU_VARIABLE = "LOWBIT_CPU"
_AVX2 = FEATURES[: FEATURES.index("avx2") + 1]
_VNNI = (*_AVX2, "avx512f", "avx512bw", "avx512_vnni")
_AMX = (*_VNNI, "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")


@dataclass(frozen=True)
class Processor:
    """A kind of x86 processor that LOWBIT_CPU can name, and the variant of the C++ kernels it would use."""

    name: str
    vendor: str
    variant: str
    features: tuple[str, ...]


PROCESSORS = {
    processor.name: processor
    for processor in (
        Processor("amd-avx2", "AuthenticAMD", "avx2", _AVX2),  # Zen 1 to 3
        Processor("amd-vnni", "AuthenticAMD", "avx512vnni", (*_VNNI, "avx512_bf16")),  # Zen 4
        Processor("intel-avx2", "GenuineIntel", "avx2", _AVX2),  # Haswell
        Processor("intel-avxvnni", "GenuineIntel", "avxvnni", (*_AVX2, "avx_vnni")),  # Alder Lake
        Processor("intel-vnni", "GenuineIntel", "avx512vnni", _VNNI),  # Ice Lake
        Processor("intel-amx", "GenuineIntel", "amx", _AMX),  # Sapphire Rapids
    )
}


@dataclass(frozen=True, kw_only=True)
class CpuInfo:
    """What is known of the processor; `features` is None where it could not be found out (not Linux)."""

    vendor: str  # as the processor spells it: GenuineIntel, AuthenticAMD, …; "" when unknown
    model: str
    cores: int  # that this process may use: affinity and container limits count
    machine_cores: int
    memory: int  # bytes that this process may use
    features: frozenset[str] | None
    architecture: str = field(default_factory=platform.machine)  # x86_64, AMD64, aarch64, arm64, …

    @property
    def is_amd(self) -> bool:
        return self.vendor == "AuthenticAMD"

    def has(self, feature: str) -> bool:
        """Whether the processor is known to have an instruction set.

        >>> CpuInfo(vendor="", model="", cores=1, machine_cores=1, memory=1, features=None).has("avx2")
        False
        """
        return self.features is not None and feature in self.features

    @property
    def has_vnni(self) -> bool:
        """Whether it multiplies small integers by one instruction whose sums cannot saturate."""
        return self.has("avx512_vnni") or self.has("avx_vnni")


def cpu_info() -> CpuInfo:
    """The processor that lowbit decides by: this machine's, or the one that LOWBIT_CPU names."""
    return _decided_by(os.environ.get(CPU_VARIABLE, ""))


@cache
def hardware_info() -> CpuInfo:
    """The processor of this machine, whatever LOWBIT_CPU says; read once per process."""
    return read_cpu_info(Path("/"))


def chosen_processor() -> Processor | None:
    """The processor that LOWBIT_CPU names; None when it is not set."""
    return _processor_named(os.environ.get(CPU_VARIABLE, ""))


def check_executable(*features: str) -> None:
    """Stop where LOWBIT_CPU leads to instructions that this machine lacks."""
    chosen = chosen_processor()
    lacking = [feature for feature in features if not hardware_info().has(feature)]
    if chosen is not None and lacking:
        raise cannot_execute(chosen, " and ".join(lacking))


def cannot_execute(chosen: Processor, instructions: str) -> LowbitError:
    """The error about instructions of the chosen processor that this machine lacks."""
    return LowbitError(
        f"{CPU_VARIABLE}={chosen.name} asks for {instructions}, which this machine cannot run; "
        f"unset {CPU_VARIABLE} or name an older processor"
    )


def _processor_named(word: str) -> Processor | None:
    name = word.strip().lower()
    if name and name not in PROCESSORS:
        hint = did_you_mean(name, PROCESSORS)
        raise LowbitError(f'{CPU_VARIABLE}="{word}" is not a known processor; {hint}')
    return PROCESSORS.get(name)


@cache
def _decided_by(word: str) -> CpuInfo:
    chosen = _processor_named(word)
    if chosen is None:
        return hardware_info()
    return replace(
        hardware_info(),
        vendor=chosen.vendor,
        model=f"{chosen.name} ({CPU_VARIABLE})",
        features=frozenset(chosen.features),
        architecture="x86_64",
    )


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


# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63.
_NO_LIMIT = 2**60


def _first_line(path: Path) -> str | None:
    """A control file's only line, or None where this kernel or container does not have the file."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _folders(root: Path, controller: str) -> list[Path]:
    """Every cgroup folder whose limit binds this process, v1 or v2, from the innermost outwards.

    Inside a container the path that the kernel names may be outside the mounted folders, hence the mount's
    own root at the end.
    """
    found = []
    for line in (_first_line(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if controller in controllers.split(","):
            mount = mount / controller
        elif controllers:
            continue
        inner = mount / path.lstrip("/")
        found += [inner, *(p for p in inner.parents if p == mount or mount in p.parents)]
    return found


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the container may use, such as 2.5, or None without a limit."""
    limits = []
    for folder in _folders(root, "cpu"):
        if text := _first_line(folder / "cpu.max"):  # v2: "250000 100000" or "max 100000"
            quota, period = text.split()
        else:  # v1
            quota = _first_line(folder / "cpu.cfs_quota_us") or "max"
            period = _first_line(folder / "cpu.cfs_period_us") or "100000"
        if quota not in ("max", "-1"):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes of memory that the container may use, or None without a limit."""
    limits = []
    for folder in _folders(root, "memory"):
        text = _first_line(folder / "memory.max") or _first_line(folder / "memory.limit_in_bytes") or "max"
        if text != "max" and int(text) < _NO_LIMIT:
            limits.append(int(text))
    return min(limits, default=None)


_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_IDLE = ("idle", "iowait")


class OtherProcesses:
    """Measures what all other processes took of the machine's processor time since this was made.

    others = OtherProcesses()
    ...
    others.fraction()  # 0.5: they kept half of all cores busy
    """

    def __init__(self) -> None:
        self._start = _times()

    def fraction(self) -> float:
        """From 0, nothing, to 1, all cores all the time."""
        busy, available, own = (now - then for now, then in zip(_times(), self._start, strict=True))
        return min(max((busy - own) / available, 0.0), 1.0) if available > 0 else 0.0


def _times() -> tuple[float, float, float]:
    """Seconds since the machine started: busy and available on all cores, and this process's own."""
    times = psutil.cpu_times()
    busy, idle = (sum(getattr(times, name, 0.0) for name in names) for names in (_BUSY, _IDLE))
    return busy, busy + idle, time.process_time()
