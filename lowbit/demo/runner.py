"""Runs the steps of `lowbit demo`, each a separate process, and shows their progress."""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lowbit.demo.steps import Step
from lowbit.errors import LowbitError
from lowbit.tipc.process import run_program
from lowbit.tipc.result import log_tail
from lowbit.training.process import Interruption

_LAST_LINES = 12  # of a failed step's log
_AT = re.compile(r"^\[Epoch (\d+), iter: (\d+)\]")
_STEPS = re.compile(r"(\d+) steps an epoch$")
# Lines of a step's log that a reader of the demo must see; who multiplies is one of them.
_NOTABLE = ("warning: ", "products ")


def run_stages(stages: Sequence[Sequence[Step]], *, at_once: int) -> None:
    """Run stage after stage, `at_once` steps of one at a time. A step that fails ends it all, as an error.

    run_stages(make_stages(Path("runs/demo")), at_once=2)
    """
    with Interruption() as interruption, _Display(sum(map(len, stages))) as display:
        for stage in stages:
            failed = threading.Event()
            with ThreadPoolExecutor(at_once) as pool:
                found = list(pool.map(lambda step: _run(step, display, interruption, failed), stage))  # noqa: B023
            if interruption.asked:
                display.say("interrupted; the same command continues from here")
                raise KeyboardInterrupt
            for reason in filter(None, found):
                raise LowbitError(reason)


def _run(step: Step, display: _Display, interruption: Interruption, failed: threading.Event) -> str | None:
    """Why the step failed; None where it did not, or was ended because of another one or by the user."""

    def stop() -> bool:
        return interruption.asked or failed.is_set()

    if stop():
        return None
    task = display.begin(step)
    outcome = run_program(
        [sys.executable, "-m", "lowbit", *step.arguments],
        folder=Path.cwd(),
        log=step.log,
        on_line=lambda line: display.line(task, step, line),
        is_interrupted=stop,
    )
    if outcome.exit_code == 0 and outcome.ended is None:
        display.end(task, step, outcome.seconds)
        return None
    if stop():
        return None
    failed.set()
    how = outcome.ended or f"exit code {outcome.exit_code}"
    lines = "".join(f"\n  {line}" for line in log_tail(step.log, _LAST_LINES))
    return f"{step.title} failed ({how}); the end of {step.log}:{lines}"


class _Display:
    """In a terminal a bar for every running step, else nothing but lines."""

    def __init__(self, total: int) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not sys.stdout.isatty(),
        )
        self._total, self._numbers = total, itertools.count(1)
        self._steps: dict[TaskID, int] = {}  # of an epoch

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def begin(self, step: Step) -> TaskID:
        title = f"{next(self._numbers)}/{self._total}  {step.title}"
        if self._progress.disable:
            self.say(title)
        return self._progress.add_task(escape(title), total=step.epochs, words="")

    def line(self, task: TaskID, step: Step, text: str) -> None:
        """What a step prints: how far a training is, and what must be seen."""
        if text.startswith(_NOTABLE):
            self.say(f"    {step.title}: {text}")
        elif found := _STEPS.search(text):
            self._steps[task] = int(found[1])
        elif (found := _AT.match(text)) and task in self._steps:
            epoch, done = int(found[1]), int(found[2]) / self._steps[task]
            words = f"epoch {epoch + 1}/{step.epochs}"
            self._progress.update(task, completed=epoch + done, words=words)

    def end(self, task: TaskID, step: Step, seconds: float) -> None:
        self._progress.remove_task(task)
        self.say(f"ok  {step.title:<30} {seconds:4.0f} s   {step.summary()}".rstrip())
