"""How much of the processor other processes use."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lowbit.errors import LowbitError
from lowbit.machine import cpu
from lowbit.machine.cpu import (
    PROCESSORS,
    check_executable,
    cpu_info,
    cpu_limit,
    hardware_info,
    memory_limit,
    read_cpu_info,
)

ZEN3 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 7763 64-Core Processor
flags\t\t: fpu sse4_1 avx f16c fma avx2 bmi2

processor\t: 1
vendor_id\t: SomethingElse
"""
GRAVITON = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm bf16 sve\nCPU part\t: 0xd40\n"


def fake_machine(root, cpuinfo: str, cpu_max: str | None = None):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(cpuinfo)
    if cpu_max:
        (root / "proc/self/cgroup").write_text("0::/\n")
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/cpu.max").write_text(cpu_max)
    return root


def test_amd_is_recognised(tmp_path):
    cpu = read_cpu_info(fake_machine(tmp_path, ZEN3))
    assert cpu.is_amd
    assert cpu.model == "AMD EPYC 7763 64-Core Processor"
    assert cpu.features == {"sse4_1", "avx", "f16c", "fma", "avx2"}
    assert cpu.has("avx2") and not cpu.has("avx512f")


def test_arm_features_and_no_vendor(tmp_path):
    cpu = read_cpu_info(fake_machine(tmp_path, GRAVITON))
    assert cpu.vendor == "" and not cpu.is_amd
    assert cpu.has("i8mm") and cpu.model


def test_container_limit_rounds_up_and_never_exceeds_the_affinity(tmp_path):
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert read_cpu_info(fake_machine(tmp_path / "a", ZEN3, "20000 100000")).cores == 1
    assert read_cpu_info(fake_machine(tmp_path / "b", ZEN3, "100000000 100000")).cores == usable


def test_other_systems_know_less_but_do_not_fail(tmp_path):
    cpu = read_cpu_info(tmp_path)
    assert cpu.features is None and not cpu.has("avx2")
    assert cpu.cores >= 1 and cpu.memory == psutil.virtual_memory().total


def test_this_machine(monkeypatch):
    monkeypatch.delenv("LOWBIT_CPU", raising=False)
    cpu = cpu_info()
    assert 1 <= cpu.cores <= cpu.machine_cores
    assert 0 < cpu.memory <= psutil.virtual_memory().total
    assert cpu_info() is cpu


@pytest.mark.parametrize("name", PROCESSORS)
def test_decisions_of_another_processor(name, monkeypatch):
    real = hardware_info()
    monkeypatch.setenv("LOWBIT_CPU", name.upper())
    decided = cpu_info()
    assert decided.is_amd is name.startswith("amd-")
    assert decided.has("avx2") and decided.has("fma")
    assert decided.has_vnni is not name.endswith("-avx2")
    assert decided.has("amx_int8") is (name == "intel-amx")
    assert decided.architecture == "x86_64" and name in decided.model
    assert (decided.cores, decided.memory) == (real.cores, real.memory), "those are this machine's"
    assert hardware_info() is real


def test_the_names_follow_from_vendor_and_instructions():
    for name, processor in PROCESSORS.items():
        vendor, instructions = name.split("-")
        assert processor.vendor == {"amd": "AuthenticAMD", "intel": "GenuineIntel"}[vendor]
        assert processor.variant == {"vnni": "avx512vnni"}.get(instructions, instructions)


def test_a_misspelt_processor(monkeypatch):
    monkeypatch.setenv("LOWBIT_CPU", "amd-avx")
    with pytest.raises(
        LowbitError, match='LOWBIT_CPU="amd-avx" is not a known processor; did you mean "amd-avx2"'
    ):
        cpu_info()


def test_instructions_that_the_machine_lacks(monkeypatch, tmp_path):
    old = read_cpu_info(fake_machine(tmp_path, "flags : sse4_1 avx\n"))
    monkeypatch.setattr(cpu, "hardware_info", lambda: old)
    monkeypatch.delenv("LOWBIT_CPU", raising=False)
    check_executable("avx2")  # nobody asked for it
    monkeypatch.setenv("LOWBIT_CPU", "amd-avx2")
    check_executable("avx")
    with pytest.raises(LowbitError, match="LOWBIT_CPU=amd-avx2 asks for avx2 and fma, which this machine"):
        check_executable("avx2", "fma")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_v2_limits_are_read(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/memory.max": "1073741824",
        },
    )
    assert cpu_limit(root) == 1.5
    assert memory_limit(root) == 2**30


def test_v2_the_tightest_of_nested_groups_counts(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job",
            "sys/fs/cgroup/slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000",
            "sys/fs/cgroup/slice/memory.max": "max",
            "sys/fs/cgroup/slice/job/memory.max": "4096",
        },
    )
    assert cpu_limit(root) == 2.0
    assert memory_limit(root) == 4096


def test_v1_limits_are_read_in_a_container_whose_path_is_not_mounted(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2048",
        },
    )
    assert cpu_limit(root) == 3.0
    assert memory_limit(root) == 2048


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/"},
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "max 100000",
            "sys/fs/cgroup/memory.max": "max",
        },
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu:/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    ],
    ids=["no proc", "no control files", "v2 max", "v1 unlimited"],
)
def test_no_limit_is_none(tmp_path, files):
    root = write(tmp_path, files)
    assert cpu_limit(root) is None
    assert memory_limit(root) is None


@pytest.mark.parametrize(
    ("busy", "own", "fraction"),
    [
        ({"user": 3.0, "idle": 5.0}, 3.0, 0.0),  # all of it is this process's
        ({"user": 3.0, "nice": 2.0, "steal": 1.0, "idle": 1.0, "iowait": 1.0}, 2.0, 0.5),
        ({"user": 2.0, "idle": 6.0}, 2.5, 0.0),  # the two clocks are not the same
        ({}, 0.0, 0.0),  # no time has passed
    ],
)
def test_the_fraction_is_what_others_took(monkeypatch, busy, own, fraction):
    times = {"user": 100.0, "system": 7.0, "idle": 1000.0}
    clock = {"own": 50.0}
    monkeypatch.setattr(cpu.psutil, "cpu_times", lambda: SimpleNamespace(**times))
    monkeypatch.setattr(cpu.time, "process_time", lambda: clock["own"])
    others = cpu.OtherProcesses()
    for name, seconds in busy.items():
        times[name] = times.get(name, 0.0) + seconds
    clock["own"] += own
    assert others.fraction() == pytest.approx(fraction)


def test_of_this_machine():
    assert 0 <= cpu.OtherProcesses().fraction() <= 1
