from __future__ import annotations

import os

import psutil
import pytest

from lowbit.errors import LowbitError
from lowbit.machine import cpu
from lowbit.machine.cpu import PROCESSORS, check_executable, cpu_info, hardware_info, read_cpu_info

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
    with pytest.raises(LowbitError, match='LOWBIT_CPU="amd-avx" is no processor; did you mean "amd-avx2"'):
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
