"""How much of the machine a container lets this process use: the cgroup limits of Linux."""

from __future__ import annotations

from pathlib import Path

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

    Inside a container the path that the kernel names may lie outside what is mounted, hence the mount's own
    root at the end.
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
