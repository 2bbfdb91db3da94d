"""The steps of `lowbit demo`: commands that anyone could type, in their order, and how they are run."""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lowbit.errors import LowbitError
from lowbit.tipc.process import run_program
from lowbit.tipc.result import log_tail
from lowbit.tipc.step_outputs import last_accuracy
from lowbit.training.process import Interruption

_CONFIG = "digits"
# What starts from trained weights needs small steps, and no warm-up.
_FINE = ("-o", "Optimizer.lr.learning_rate=0.01", "-o", "Optimizer.lr.warmup_epoch=0")
BENCH = ("resnet20", "--rounds", "3")


@dataclass(frozen=True, kw_only=True)
class DemoTraining:
    """A row of the demo: how the network is trained, and which side of `lowbit bench` that is."""

    name: str  # of its run folder
    title: str
    side: str
    epochs: int
    recipe: str | None = None
    from_fp32: bool = False
    options: tuple[str, ...] = ()


TRAININGS = (
    DemoTraining(name="fp32", title="fp32", side="lowbit fp32", epochs=5),
    DemoTraining(
        name="w8a8",
        title="W8A8 PACT",
        side="QAT W8A8",
        epochs=2,
        recipe="qat_w8a8",
        from_fp32=True,
        options=_FINE,
    ),
    DemoTraining(
        name="w4a4",
        title="W4A4 LSQ",
        side="QAT W4A4",
        epochs=2,
        recipe="qat_w4a4",
        from_fp32=True,
        options=_FINE,
    ),
    DemoTraining(name="w4a4g4", title="W4A4G4", side="W4A4G4", epochs=5, recipe="qt_w4a4g4"),
)


@dataclass(frozen=True, kw_only=True)
class DemoStep:
    """A `lowbit` command with its log; `summary` says in a few words what came of it."""

    title: str
    arguments: tuple[str, ...]
    log: Path
    summary: Callable[[], str]
    epochs: int | None = None  # of a training, to show how far it is


def make_folder(folder: Path) -> None:
    """Creates the demo's folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LowbitError(
            f"cannot write into {folder}: {error.strerror}; give another folder with --output-dir"
        ) from None


def make_stages(folder: Path) -> list[list[DemoStep]]:
    """All steps; those of one stage do not need each other and can run at once.

    Timing steps have a separate stage.
    """
    from_scratch = [_train(folder, one) for one in TRAININGS if not one.from_fp32]
    from_fp32 = [_train(folder, one) for one in TRAININGS if one.from_fp32]
    return [
        from_scratch,
        from_fp32,
        [_verify(folder, one) for one in TRAININGS],
        [_bench(folder)],
        [_report(folder)],
    ]


def bench_file(folder: Path) -> Path:
    """Where the times of training steps are kept."""
    return folder / "bench.json"


def report_file(folder: Path) -> Path:
    """The page with all runs."""
    return folder / "report.html"


def _train(folder: Path, training: DemoTraining) -> DemoStep:
    arguments = ["train", "-c", _CONFIG, "--output-dir", str(folder / training.name)]
    arguments += ["--epochs", str(training.epochs), "--resume", "auto"]
    title = f"Train {training.title}"
    if training.recipe:
        arguments += ["--recipe", training.recipe]
    if training.from_fp32:
        arguments += ["--pretrained", str(folder / "fp32" / "checkpoints" / "best.pdparams")]
        title += " from fp32"
    log = folder / "logs" / f"train_{training.name}.log"
    return DemoStep(
        title=title,
        arguments=(*arguments, *training.options),
        log=log,
        summary=partial(_accuracy, log),
        epochs=training.epochs,
    )


def _verify(folder: Path, training: DemoTraining) -> DemoStep:
    run = folder / training.name
    return DemoStep(
        title=f"Export and verify {training.title}",
        # Two run at once, so one thread each; and no latency, of which so small a network says little.
        arguments=("verify", str(run), "--no-latency", "--threads", "1"),
        log=folder / "logs" / f"verify_{training.name}.log",
        summary=partial(_agreement, run / "verify.json"),
    )


def _bench(folder: Path) -> DemoStep:
    return DemoStep(
        title="Time a training step, in turns",
        arguments=("bench", *BENCH, "--output", str(bench_file(folder))),
        log=folder / "logs" / "bench.log",
        summary=lambda: "",
    )


def _report(folder: Path) -> DemoStep:
    page = report_file(folder)
    runs = [str(folder / one.name) for one in TRAININGS]
    return DemoStep(
        title="Write the report",
        arguments=("report", *runs, "--output", str(page)),
        log=folder / "logs" / "report.log",
        summary=lambda: f"{page.stat().st_size / 1e6:.1f} MB",
    )


def _accuracy(log: Path) -> str:
    found = last_accuracy(log)
    return "trained before" if found is None else f"top-1 {found:.1%}"


def _agreement(file: Path) -> str:
    engines = json.loads(file.read_text("utf-8"))["engines"]
    lowest = min(engine["agreement"] for engine in engines)
    return f"at least {lowest:.1%} same class in {len(engines)} engines"


_LAST_LINES = 12  # of a failed step's log
_AT = re.compile(r"^\[Epoch (\d+), iter: (\d+)\]")
_STEPS = re.compile(r"(\d+) steps an epoch$")
# Lines of a step's log that a reader of the demo must see; who multiplies is one of them.
_NOTABLE = ("warning: ", "products ")


def run_stages(stages: Sequence[Sequence[DemoStep]], *, at_once: int) -> None:
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


def _run(
    step: DemoStep, display: _Display, interruption: Interruption, failed: threading.Event
) -> str | None:
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

    def begin(self, step: DemoStep) -> TaskID:
        title = f"{next(self._numbers)}/{self._total}  {step.title}"
        if self._progress.disable:
            self.say(title)
        return self._progress.add_task(escape(title), total=step.epochs, words="")

    def line(self, task: TaskID, step: DemoStep, text: str) -> None:
        """What a step prints: how far a training is, and what must be seen."""
        if text.startswith(_NOTABLE):
            self.say(f"    {step.title}: {text}")
        elif found := _STEPS.search(text):
            self._steps[task] = int(found[1])
        elif (found := _AT.match(text)) and task in self._steps:
            epoch, done = int(found[1]), int(found[2]) / self._steps[task]
            words = f"epoch {epoch + 1}/{step.epochs}"
            self._progress.update(task, completed=epoch + done, words=words)

    def end(self, task: TaskID, step: DemoStep, seconds: float) -> None:
        self._progress.remove_task(task)
        self.say(f"ok  {step.title:<30} {seconds:4.0f} s   {step.summary()}".rstrip())
