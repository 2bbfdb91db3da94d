"""How long a run still takes, and what it ends with: accuracies, duration, and the next command."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lowbit.files import write_atomically
from lowbit.formatting import duration, percent

SUMMARY_FILE = "summary.json"


@dataclass
class RunClock:
    """Estimates the time that is left from the steps done so far, evaluations included.

    >>> clock = RunClock(total=100, done=20, now=iter([0.0, 30.0]).__next__)
    >>> clock.seconds_left(35)  # 15 steps took 30 s
    130.0
    """

    total: int  # steps of the whole run
    done: int = 0  # of them, before this process began
    now: Callable[[], float] = time.perf_counter
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def seconds(self) -> float:
        """Since the run began or was resumed."""
        return self.now() - self.started

    def seconds_left(self, step: int) -> float | None:
        """After `step` steps; None before the first one."""
        steps = step - self.done
        return self.seconds() / steps * (self.total - step) if steps > 0 else None


@dataclass(frozen=True)
class Summary:
    """What a run reached; accuracies are fractions, None where nothing was evaluated."""

    folder: str
    epochs: int  # trained, all in all
    best_top1: float | None
    best_epoch: int | None  # counted from 1
    last_top1: float | None
    seconds: float  # of this process; a resumed run was at it before
    stopped_early: bool
    quantized: bool

    def lines(self) -> list[str]:
        """For people, with the command to go on with.

        >>> print(*Summary("runs/a", 3, 0.98, 2, 0.975, 75.2, False, True).lines(), sep="\\n")
        Best top-1 98.00 % (epoch 2 of 3), last 97.50 %; took 1 min 15 s
        Run folder: runs/a
        Next: lowbit verify runs/a
        """
        took = f"took {duration(self.seconds)}"
        found = took.capitalize()
        if self.best_top1 is not None:
            found = f"Best top-1 {percent(self.best_top1)} (epoch {self.best_epoch} of {self.epochs}), "
            found += f"last {percent(self.last_top1)}; {took}"
        command = "verify" if self.quantized else "export"
        return [found, f"Run folder: {self.folder}", f"Next: lowbit {command} {shlex.quote(self.folder)}"]

    def write(self) -> None:
        """Into the run's folder."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        write_atomically(Path(self.folder) / SUMMARY_FILE, lambda file: file.write_text(text + "\n", "utf-8"))
