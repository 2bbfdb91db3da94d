"""The folder of a run: locked while in use, earlier runs moved aside; the summary of a run."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lowbit.digest import DamagedFile
from lowbit.errors import LowbitError
from lowbit.files import write_atomically
from lowbit.formatting import duration, percent
from lowbit.training.checkpoint import SUFFIX, Checkpoint, read_checkpoint
from lowbit.version import __version__

_LOCK = ".lowbit.lock"
_RECORD = "run.json"
_FILES = (_RECORD, "config.yaml", "plan.json", "metrics.jsonl", "summary.json")
_MADE_LATER = ("verify.json", "advice.json", "analysis.json", "report.html")
_FOLDERS = ("export", "vdl")
_EXPORTED = ("inference.json", "inference.pdiparams", "inference.yml")  # where both go to one folder
_CHECKPOINTS = (f"*{SUFFIX}", "latest.pd*", "best.pd*", "model_*.pd*")


class RunDirectory:
    """`runs/<name>/` with config.yaml, metrics.jsonl and checkpoints/; held by one process at a time.

    >>> with RunDirectory(Path("runs/digits"), checkpoint_dir="checkpoints") as run:  # doctest: +SKIP
    ...     run.checkpoint("latest")
    PosixPath('runs/digits/checkpoints/latest.lowbit')
    """

    def __init__(self, path: Path, checkpoint_dir: str) -> None:
        self.path = path
        self.checkpoints = path / checkpoint_dir
        self._lock: int | None = None

    def __enter__(self) -> RunDirectory:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise LowbitError(f"cannot write into the output folder {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._lock, 100).decode(errors="replace").strip()
            os.close(self._lock)
            raise LowbitError(
                f"another run ({owner or 'unknown process'}) is writing into {self.path}; "
                "wait for it or give another output folder"
            ) from None
        for rest in (*self.path.glob(".*.part"), *self.checkpoints.glob(".*.part")):
            rest.unlink()  # what a killed run was writing
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"process {os.getpid()}\n".encode())
        return self

    def __exit__(self, *exception: object) -> None:
        # The file stays: otherwise a third process could lock a new one while a second waits for this one.
        os.close(self._lock)

    @property
    def reconstruction(self) -> Path:
        """Where reconstruction keeps the blocks that are done, until all of them are."""
        return self.path / "reconstruction"

    def checkpoint(self, name: str) -> Path:
        """Where the checkpoint of this name is, or will be."""
        return self.checkpoints / f"{name}{SUFFIX}"

    def newest_whole(self, tell: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
        """The newest checkpoint of the run that can be read; None where there is none at all.

        That is `latest`. If it is damaged or gone, it is the one of `best` and `model_*` with the most steps,
        and `tell` gets a line about it. If all of them are damaged, that is an error.
        """
        latest = self.checkpoint("latest")
        others = [path for name in ("best", "model_*") for path in self.checkpoints.glob(f"{name}{SUFFIX}")]
        if not latest.is_file() and not others:
            return None
        try:
            return latest, read_checkpoint(latest)
        except DamagedFile as error:
            reason = str(error)
        except LowbitError:
            if latest.is_file():
                raise
            reason = f"{latest} is missing"
        newest: tuple[Path, Checkpoint] | None = None
        for path in sorted(others):
            try:
                read = read_checkpoint(path)
            except DamagedFile:
                continue
            if newest is None or read.progress.step > newest[1].progress.step:
                newest = path, read
        if newest is None:
            raise LowbitError(f"{reason}. No other checkpoint there is whole: start without --resume")
        tell(f"continuing from {newest[0]}, the newest intact checkpoint, because: {reason}")
        return newest

    def move_aside_earlier_run(self) -> Path | None:
        """Moves what an earlier run left here into `earlier/<number>`, and returns that folder."""
        if not self._is_ours():
            return None
        number = 1
        while (target := self.path / "earlier" / str(number)).exists():
            number += 1
        (target / self.checkpoints.relative_to(self.path)).mkdir(parents=True)
        for name in (*_FILES, *_MADE_LATER, *_FOLDERS, *_EXPORTED):
            if (self.path / name).exists():
                os.replace(self.path / name, target / name)
        for pattern in _CHECKPOINTS:
            for file in self.checkpoints.glob(pattern):
                os.replace(file, target / file.relative_to(self.path))
        return target

    def _is_ours(self) -> bool:
        """Whether a run left its record here; train.py writes into the current folder, among anything."""
        try:
            return "lowbit" in json.loads((self.path / _RECORD).read_text("utf-8"))
        except (OSError, ValueError, TypeError):
            return False

    def record(
        self, config_yaml: str, environment: dict[str, str], plan: list[dict[str, Any]] | None = None
    ) -> None:
        """Writes config.yaml, run.json with command and environment, and plan.json if there is a plan."""
        if plan is not None:
            described = json.dumps(plan, indent=2, ensure_ascii=False)
            write_atomically(self.path / "plan.json", lambda file: file.write_text(described, "utf-8"))
        write_atomically(self.path / "config.yaml", lambda file: file.write_text(config_yaml, "utf-8"))
        run = {
            "lowbit": __version__,
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "environment": environment,
        }
        text = json.dumps(run, indent=2, ensure_ascii=False)
        write_atomically(self.path / _RECORD, lambda file: file.write_text(text, "utf-8"))


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
        """For people, with the command to continue with.

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
