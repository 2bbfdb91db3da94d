"""How much of the processor other processes use: a speed measured beside them says little."""

from __future__ import annotations

import time

import psutil

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
