"""Output of a training run: a progress bar in a terminal, plain log lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lowbit.formatting import duration

_PROGRESS_SECONDS = 10  # between lines about a stretch of work, in a log
_RUN_SECONDS = 30  # between lines about the whole run


@dataclass(frozen=True)
class StepReport:
    """The figures of the steps since the last report."""

    epoch: int
    iteration: int
    metrics: dict[str, float]
    learning_rate: float
    reader_cost: float  # seconds a batch spent waiting for data
    batch_cost: float  # seconds a batch
    samples: float  # a batch, over all ranks
    epochs: int = 0  # of the whole run, 0 where it is not known
    steps: int = 0  # of an epoch
    seconds_left: float | None = None  # of the whole run

    @property
    def images_per_second(self) -> float:
        """Throughput over all ranks."""
        return self.samples / self.batch_cost if self.batch_cost else 0.0

    def log_line(self) -> str:
        """The line that Paddle's tools parse."""
        accuracies = "".join(
            f"{name}: {value:.5f}, " for name, value in self.metrics.items() if name != "loss"
        )
        return (
            f"[Epoch {self.epoch}, iter: {self.iteration}] {accuracies}lr: {self.learning_rate:.5f}, "
            f"loss: {self.metrics['loss']:.5f}, avg_reader_cost: {self.reader_cost:.5f} sec, "
            f"avg_batch_cost: {self.batch_cost:.5f} sec, avg_samples: {self.samples:.1f}, "
            f"avg_ips: {self.images_per_second:.5f} images/sec."
        )

    def progress_line(self) -> str:
        """The progress of the whole run, in its own line: tools parse the log line as it is.

        >>> StepReport(1, 40, {"loss": 1.0}, 0.1, 0.0, 0.5, 64.0, 90, 100, 75).progress_line()
        'epoch 2 of 90, step 40 of 100, 1 min 15 s left'
        """
        left = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
        return f"epoch {self.epoch + 1} of {self.epochs}, step {self.iteration} of {self.steps}{left}"


def accuracy_line(metrics: dict[str, float], of: str = "") -> str:
    """The evaluation line that Paddle's tools parse; `of` another model, one that they ignore.

    >>> accuracy_line({"loss": 1.2, "top1": 0.564, "top5": 0.79})
    ' * Acc@1 0.564 Acc@5 0.790'
    >>> accuracy_line({"top1": 0.564}, of="fp32")
    ' * fp32 Acc@1 0.564'
    """
    return (f" * {of} " if of else " * ") + " ".join(
        f"Acc@{name[3:]} {value:.3f}" for name, value in metrics.items() if name.startswith("top")
    )


class PlainDisplay:
    """Lines, for logs and pipes. Only the first rank shows anything; with `quiet`, results only."""

    def __init__(
        self, *, silent: bool = False, quiet: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._silent, self._quiet, self._now = silent, quiet or silent, now
        self._title, self._total, self._done, self._first = "", 0, 0, 0
        self._began = self._shown = self._told = now()

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def message(self, text: str) -> None:
        """One line to be read."""
        if not self._quiet:
            print(text, flush=True)

    def result(self, text: str) -> None:
        """One line of the result."""
        if not self._silent:
            print(text, flush=True)

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """A stretch of work of `total` steps starts (or continues at step `done`)."""
        self._title, self._total, self._done, self._first = title, total, done, done
        self._began = self._shown = self._now()

    def advance(self) -> None:
        """One step of the stretch is done; in a log, a line every ten seconds says how far it is."""
        self._done += 1
        now = self._now()
        if self._quiet or now - self._shown < _PROGRESS_SECONDS or self._done >= self._total:
            return
        self._shown = now
        left = (now - self._began) / (self._done - self._first) * (self._total - self._done)
        self._tell_progress(f"{self._title}: {self._done} of {self._total}, {duration(left)} left")

    def report(self, step: StepReport) -> None:
        """The figures of the last steps; at an epoch's end and every half minute, the progress of the run."""
        self.message(step.log_line())
        now = self._now()
        self._shown = now
        if step.epochs and (step.iteration == step.steps or now - self._told >= _RUN_SECONDS):
            self._told = now
            self._tell_progress(step.progress_line())

    def _tell_progress(self, line: str) -> None:
        """To stderr: stdout is for what tools parse and for results."""
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def finish(self, metrics: dict[str, float]) -> None:
        """The stretch is done; a log has its last report already."""


class TerminalDisplay(PlainDisplay):
    """A progress bar with the current figures, images/s and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[run]}"),
            console=Console(),
        )
        self._task = self._progress.add_task("", figures="", run="", visible=False)
        self._run = ""  # how long the whole run still takes

    def __enter__(self) -> TerminalDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.update(self._task, visible=False)
        self._progress.stop()

    def message(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def result(self, text: str) -> None:
        self.message(text)

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self._title = title
        self._progress.reset(
            self._task,
            total=total,
            completed=done,
            description=title,
            figures="",
            run=self._run,
            visible=True,
        )

    def advance(self) -> None:
        self._progress.advance(self._task)

    def report(self, step: StepReport) -> None:
        figures = _figures(step.metrics, step.images_per_second)
        self._run = "" if step.seconds_left is None else f"run {duration(step.seconds_left)}"
        self._progress.update(self._task, figures=figures, run=self._run)

    def finish(self, metrics: dict[str, float]) -> None:
        self.message(f"{self._title}: {_figures(metrics, metrics['images_per_second'])}")


def _figures(metrics: dict[str, float], images_per_second: float) -> str:
    accuracy = f" top1 {metrics['top1']:.3f}" if "top1" in metrics else ""
    return f"loss {metrics['loss']:.3f}{accuracy} {images_per_second:.0f} images/s"


def open_display(*, first_rank: bool = True, quiet: bool = False, silent: bool = False) -> PlainDisplay:
    """The display that fits where the output goes; with `quiet` it shows results only, `silent` nothing."""
    if first_rank and sys.stdout.isatty() and not (quiet or silent):
        return TerminalDisplay()
    return PlainDisplay(silent=silent or not first_rank, quiet=quiet)
