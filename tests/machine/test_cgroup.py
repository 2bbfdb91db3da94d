from __future__ import annotations

from pathlib import Path

import pytest

from lowbit.machine.cgroup import cpu_limit, memory_limit


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
