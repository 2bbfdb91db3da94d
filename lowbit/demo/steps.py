"""The steps of `lowbit demo`: commands that anyone could type, in the order in which they can run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lowbit.errors import LowbitError
from lowbit.tipc.step_outputs import last_accuracy

_CONFIG = "digits"
# What starts from trained weights needs small steps, and no warm-up.
_FINE = ("-o", "Optimizer.lr.learning_rate=0.01", "-o", "Optimizer.lr.warmup_epoch=0")
BENCH = ("resnet20", "--rounds", "3")


@dataclass(frozen=True, kw_only=True)
class Training:
    """A row of the demo: how the network is trained, and which side of `lowbit bench` that is."""

    name: str  # of its run folder
    title: str
    side: str
    epochs: int
    recipe: str | None = None
    from_fp32: bool = False
    options: tuple[str, ...] = ()


TRAININGS = (
    Training(name="fp32", title="fp32", side="lowbit fp32", epochs=5),
    Training(
        name="w8a8",
        title="W8A8 PACT",
        side="QAT W8A8",
        epochs=2,
        recipe="qat_w8a8",
        from_fp32=True,
        options=_FINE,
    ),
    Training(
        name="w4a4",
        title="W4A4 LSQ",
        side="QAT W4A4",
        epochs=2,
        recipe="qat_w4a4",
        from_fp32=True,
        options=_FINE,
    ),
    Training(name="w4a4g4", title="W4A4G4", side="W4A4G4", epochs=5, recipe="qt_w4a4g4"),
)


@dataclass(frozen=True, kw_only=True)
class Step:
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


def make_stages(folder: Path) -> list[list[Step]]:
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


def _train(folder: Path, training: Training) -> Step:
    arguments = ["train", "-c", _CONFIG, "--output-dir", str(folder / training.name)]
    arguments += ["--epochs", str(training.epochs), "--resume", "auto"]
    title = f"Train {training.title}"
    if training.recipe:
        arguments += ["--recipe", training.recipe]
    if training.from_fp32:
        arguments += ["--pretrained", str(folder / "fp32" / "checkpoints" / "best.pdparams")]
        title += " from fp32"
    log = folder / "logs" / f"train_{training.name}.log"
    return Step(
        title=title,
        arguments=(*arguments, *training.options),
        log=log,
        summary=partial(_accuracy, log),
        epochs=training.epochs,
    )


def _verify(folder: Path, training: Training) -> Step:
    run = folder / training.name
    return Step(
        title=f"Export and verify {training.title}",
        # Two run at once, so one thread each; and no latency, of which so small a network says little.
        arguments=("verify", str(run), "--no-latency", "--threads", "1"),
        log=folder / "logs" / f"verify_{training.name}.log",
        summary=partial(_agreement, run / "verify.json"),
    )


def _bench(folder: Path) -> Step:
    return Step(
        title="Time a training step, in turns",
        arguments=("bench", *BENCH, "--output", str(bench_file(folder))),
        log=folder / "logs" / "bench.log",
        summary=lambda: "",
    )


def _report(folder: Path) -> Step:
    page = report_file(folder)
    runs = [str(folder / one.name) for one in TRAININGS]
    return Step(
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
