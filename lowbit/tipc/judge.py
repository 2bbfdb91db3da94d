"""Judges a step by its files and its log, beyond its exit code."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lowbit.tipc.process import Outcome
from lowbit.tipc.result import Check
from lowbit.tipc.step_outputs import (
    PrintedClass,
    Snapshot,
    changed_files,
    check_checkpoint,
    check_weights,
    class_count,
    epoch_losses,
    find_weights,
    last_accuracy,
    last_loss,
    printed_classes,
    take_snapshot,
)
from lowbit.tipc.steps import ChainPlan, Step, StepKind

ENOUGH_EPOCHS = 5  # with fewer, the loss of small batches need not fall


@dataclass(frozen=True, kw_only=True)
class Request:
    """The exported files, the checkpoint that they are of, and images to compare on."""

    program: str | None  # inference.json or .pdmodel, with its .pdiparams next to it
    onnx: str | None
    weights: str | None
    images: str | None
    quantized: bool


@dataclass(frozen=True)
class Expected:
    """The trained model's probabilities for an image."""

    image: str
    probabilities: list[float]


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """The checks, and the expected output of inference for the first images."""

    checks: list[Check]
    expected: list[Expected] = field(default_factory=list)
    image_count: int = 0


def read_report(path: Path) -> ModelReport | None:
    """Read the report of the process; None if it wrote none."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return ModelReport(
        checks=[Check(**check) for check in values["checks"]],
        expected=[Expected(**answer) for answer in values["expected"]],
        image_count=values["image_count"],
    )


CheckProgram = Callable[[Step, Sequence[str]], Outcome]  # runs it; what it prints goes next to the step's log


def check_export(root: Path, step: Step, before: Snapshot, run: CheckProgram) -> ModelReport:
    """Find the files that the step has written, and open them in another process."""
    folder = root / (step.leaves or step.folder)
    written = changed_files(before, folder)
    program, onnx = _program(written), _first(path for path in written if path.suffix == ".onnx")
    if program is None and onnx is None:
        old = " (one of an earlier run is there)" if _program(list(before)) else ""
        expected = "inference.json or .pdmodel with its .pdiparams, or an .onnx file"
        return ModelReport(
            checks=[Check("exported model", False, f"none written to {folder}{old}: {expected}")]
        )
    weights = _source(root, step, written)
    request = Request(
        program=None if program is None else str(program),
        onnx=None if onnx is None else str(onnx),
        weights=None if weights is None else str(weights),
        images=step.image,
        quantized=step.quantized,
    )
    with tempfile.TemporaryDirectory(prefix="lowbit-tipc-") as name:
        question, answer = Path(name) / "request.json", Path(name) / "report.json"
        question.write_text(json.dumps(asdict(request)), "utf-8")
        outcome = run(step, (sys.executable, "-m", "lowbit.tipc.model_check", str(question), str(answer)))
        found = read_report(answer)
    if outcome.exit_code == 0 and found is not None:
        return found
    how = outcome.ended or f"ended with exit code {outcome.exit_code}"
    return ModelReport(checks=[Check("loads", False, f"the process that opened {program or onnx} {how}")])


def _program(written: Sequence[Path]) -> Path | None:
    """The program that has its parameters next to it, preferably one called `inference`."""
    names = {path for path in written if path.suffix == ".pdiparams"}
    found = [
        path
        for path in written
        if path.suffix in (".json", ".pdmodel") and path.with_suffix(".pdiparams") in names
    ]
    return _first(sorted(found, key=lambda path: (path.stem != "inference", len(path.parts), path)))


def _source(root: Path, step: Step, written: Sequence[Path]) -> Path | None:
    """The checkpoint of the exported model; an export that quantizes writes its own."""
    own = _first(path for path in written if path.name == "latest.lowbit")
    return own or (find_weights(root / step.weights) if step.weights else None)


def _first(paths: Iterable[Path]) -> Path | None:
    return next(iter(paths), None)


_TOLERANCE = 0.01  # of a probability: faster kernels and three printed digits


def check_printed_classes(log: Path, report: ModelReport | None, *, must_classify: bool) -> list[Check]:
    """The checks of an inference step's log; `report` is the report on its model."""
    found = printed_classes(log)
    if not found:
        wanted = "no line like `class_id: 8, prob: 0.909` in its log"
        return [Check("class and probability", False if must_classify else None, wanted)]
    strange = next((answer for answer in found if not _is_probability(answer)), None)
    if strange:
        return [Check("class and probability", False, f"it printed prob: {strange.probability}")]
    first = found[0]
    printed = f"{len(found)} lines, the first: class {first.class_id} with {first.probability:.3f}"
    checks = [Check("class and probability", True, printed)]
    if report is None or not report.expected:
        why = "the trained model's output is not known"
        return [*checks, Check("the trained model's class", None, why)]
    return [*checks, _compare(found, report)]


def _is_probability(answer: PrintedClass) -> bool:
    return math.isfinite(answer.probability) and 0 <= answer.probability <= 1 + 1e-6


def _compare(found: list[PrintedClass], report: ModelReport) -> Check:
    name = "the trained model's class"
    if len(found) != report.image_count:
        return Check(name, False, f"{report.image_count} images, but {len(found)} lines")
    for printed, expected in zip(found, report.expected, strict=False):  # only the first are expected
        if printed.image is not None and Path(printed.image).name != Path(expected.image).name:
            return Check(name, False, f"expected {expected.image}, it printed {printed.image}")
        if not _agree(printed, expected):
            best = max(range(len(expected.probabilities)), key=expected.probabilities.__getitem__)
            return Check(
                name,
                False,
                f"{expected.image}: trained, class {best} with {expected.probabilities[best]:.3f}; printed, "
                f"class {printed.class_id} with {printed.probability:.3f}",
            )
    looked_at = min(len(report.expected), report.image_count)
    return Check(name, True, f"the same for all {looked_at} compared images")


def _agree(printed: PrintedClass, expected: Expected) -> bool:
    """Whether it is the same class, or one of the same probability within the tolerance."""
    best = max(expected.probabilities)
    if printed.class_id >= len(expected.probabilities):
        return False
    own = expected.probabilities[printed.class_id]
    return best - own <= _TOLERANCE and abs(printed.probability - own) <= _TOLERANCE


def check_learning(losses: Sequence[float], classes: int | None) -> Check:
    """Whether the loss falls: its mean over the last half of the epochs is below that over the first half.

    >>> check_learning([1.4, 1.3, 1.1, 0.9, 0.7], 4).passed
    True
    """
    if len(losses) < ENOUGH_EPOCHS:
        short = f"{len(losses)} epochs in its log; {ENOUGH_EPOCHS} are needed to see whether the loss falls"
        return Check("learning", None, short)
    half = len(losses) // 2
    before, after = sum(losses[:half]) / half, sum(losses[-half:]) / half
    detail = f"mean loss {before:.4g} in the first {half} epochs, {after:.4g} in the last {half}"
    chance = math.log(classes) if classes and classes > 1 else None
    if chance is not None and after >= chance:
        detail += f": no better than guessing among {classes} classes ({chance:.4g})"
    return Check("learning", after < before, detail)


@dataclass
class Judge:
    """Judges the steps of a plan in order; inference must print the trained model's classes."""

    plan: ChainPlan
    run_check: CheckProgram
    _reports: dict[str, ModelReport] = field(default_factory=dict)

    def look(self, step: Step) -> Snapshot:
        """A snapshot of the files before a step, to tell its own from older ones."""
        folder = self._writes_to(step)
        return take_snapshot(folder) if folder else {}

    def judge(self, step: Step, before: Snapshot) -> list[Check]:
        """The checks of a step whose exit code was 0."""
        kinds: dict[StepKind, Callable[[Step, Snapshot], list[Check]]] = {
            StepKind.TRAIN: self._train,
            StepKind.EVAL: self._eval,
            StepKind.EXPORT: self._export,
            StepKind.INFER: self._infer,
        }
        return kinds[step.kind](step, before)

    def _log(self, step: Step) -> Path:
        return self.plan.root / step.log

    def _writes_to(self, step: Step) -> Path | None:
        if step.kind is StepKind.TRAIN:
            return self.plan.root / step.folder
        return self.plan.root / step.leaves if step.kind is StepKind.EXPORT and step.leaves else None

    def _train(self, step: Step, before: Snapshot) -> list[Check]:
        checks = []
        if step.leaves:
            root = self.plan.root
            left, weights = check_checkpoint(root / step.leaves, before, root / step.folder)
            checks += [left, check_weights(weights)] if weights else [left]
        loss = last_loss(self._log(step))
        if loss is None:
            return [*checks, Check("loss", None, "its log has no line with `loss: NUMBER`")]
        checks.append(Check("loss", math.isfinite(loss), f"the last one is {loss:g}"))
        classes = class_count(self.plan.root, step.arguments)
        return [*checks, check_learning(epoch_losses(self._log(step)), classes)]

    def _eval(self, step: Step, before: Snapshot) -> list[Check]:
        accuracy = last_accuracy(self._log(step))
        if accuracy is None:
            return [Check("accuracy", None, "its log has no line like ` * Acc@1 0.564`")]
        checks = [Check("accuracy", 0 <= accuracy <= 100, f"Acc@1 {accuracy:g}")]
        classes = class_count(self.plan.root, step.arguments)
        if classes and accuracy <= 1 / classes:
            guessing = f"Acc@1 {accuracy:g} is no better than guessing among {classes} classes"
            checks.append(Check("better than chance", None, guessing))
        return checks

    def _export(self, step: Step, before: Snapshot) -> list[Check]:
        report = check_export(self.plan.root, step, before, self.run_check)
        self._reports[step.name] = report
        return report.checks

    def _infer(self, step: Step, before: Snapshot) -> list[Check]:
        report = next((self._reports[name] for name in step.needs if name in self._reports), None)
        # The 32-line layout is that of classifiers; the other one serves detectors and readers of text, too.
        return check_printed_classes(self._log(step), report, must_classify=self.plan.layout == 32)
