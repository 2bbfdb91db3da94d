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
    Answer,
    Snapshot,
    answers,
    changed_files,
    check_checkpoint,
    check_weights,
    class_count,
    epoch_losses,
    find_weights,
    last_accuracy,
    last_loss,
    take_snapshot,
)
from lowbit.tipc.steps import ChainPlan, Step, StepKind

ENOUGH_EPOCHS = 5  # with fewer, the loss of small batches need not fall


@dataclass(frozen=True, kw_only=True)
class Request:
    """The exported files, the checkpoint that they are of, and images to compare on."""

    program: str | None  # inference.json or .pdmodel, with its .pdiparams beside it
    onnx: str | None
    weights: str | None
    images: str | None
    quantized: bool


@dataclass(frozen=True)
class Expected:
    """What the trained model answers to an image."""

    image: str
    probabilities: list[float]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The checks, and what inference has to print for the first of the images."""

    checks: list[Check]
    expected: list[Expected] = field(default_factory=list)
    image_count: int = 0


def read_finding(path: Path) -> Finding | None:
    """What the process has written; None where it did not get that far."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return Finding(
        checks=[Check(**check) for check in values["checks"]],
        expected=[Expected(**answer) for answer in values["expected"]],
        image_count=values["image_count"],
    )


CheckProgram = Callable[[Step, Sequence[str]], Outcome]  # runs it; what it prints goes beside the step's log


def check_export(root: Path, step: Step, before: Snapshot, run: CheckProgram) -> Finding:
    """Looks for the files that the step has written, and lets another process open them."""
    folder = root / (step.leaves or step.folder)
    written = changed_files(before, folder)
    program, onnx = _program(written), _first(path for path in written if path.suffix == ".onnx")
    if program is None and onnx is None:
        old = " (one of an earlier run is there)" if _program(list(before)) else ""
        expected = "inference.json or .pdmodel with its .pdiparams, or an .onnx file"
        return Finding(checks=[Check("exported model", False, f"none written to {folder}{old}: {expected}")])
    weights = _source(root, step, written)
    request = Request(
        program=program and str(program),
        onnx=onnx and str(onnx),
        weights=weights and str(weights),
        images=step.image,
        quantized=step.quantized,
    )
    with tempfile.TemporaryDirectory(prefix="lowbit-tipc-") as name:
        question, answer = Path(name) / "request.json", Path(name) / "finding.json"
        question.write_text(json.dumps(asdict(request)), "utf-8")
        outcome = run(step, (sys.executable, "-m", "lowbit.tipc.model_check", str(question), str(answer)))
        found = read_finding(answer)
    if outcome.exit_code == 0 and found is not None:
        return found
    how = outcome.ended or f"ended with exit code {outcome.exit_code}"
    return Finding(checks=[Check("loads", False, f"the process that opened {program or onnx} {how}")])


def _program(written: Sequence[Path]) -> Path | None:
    """The program that has its parameters beside it; the ecosystem calls it `inference`, if not `model`."""
    names = {path for path in written if path.suffix == ".pdiparams"}
    found = [
        path
        for path in written
        if path.suffix in (".json", ".pdmodel") and path.with_suffix(".pdiparams") in names
    ]
    return _first(sorted(found, key=lambda path: (path.stem != "inference", len(path.parts), path)))


def _source(root: Path, step: Step, written: Sequence[Path]) -> Path | None:
    """The checkpoint that the exported model is of: one of the step's own, where it quantized, too."""
    own = _first(path for path in written if path.name == "latest.lowbit")
    return own or (find_weights(root / step.weights) if step.weights else None)


def _first(paths: Iterable[Path]) -> Path | None:
    return next(iter(paths), None)


_TOLERANCE = 0.01  # of a probability: faster kernels and three printed digits


def check_answers(log: Path, finding: Finding | None, *, must_classify: bool) -> list[Check]:
    """The checks of an inference step's log; `finding` is about the model that it ran."""
    found = answers(log)
    if not found:
        wanted = "no line like `class_id: 8, prob: 0.909` in its log"
        return [Check("class and probability", False if must_classify else None, wanted)]
    strange = next((answer for answer in found if not _is_probability(answer)), None)
    if strange:
        return [Check("class and probability", False, f"it printed prob: {strange.probability}")]
    first = found[0]
    printed = f"{len(found)} lines, the first: class {first.class_id} with {first.probability:.3f}"
    checks = [Check("class and probability", True, printed)]
    if finding is None or not finding.expected:
        why = "what the trained model answers is not known"
        return [*checks, Check("the trained model's class", None, why)]
    return [*checks, _compare(found, finding)]


def _is_probability(answer: Answer) -> bool:
    return math.isfinite(answer.probability) and 0 <= answer.probability <= 1 + 1e-6


def _compare(found: list[Answer], finding: Finding) -> Check:
    name = "the trained model's class"
    if len(found) != finding.image_count:
        return Check(name, False, f"{finding.image_count} images, but {len(found)} lines")
    for printed, expected in zip(found, finding.expected, strict=False):  # only the first are expected
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
    looked_at = min(len(finding.expected), finding.image_count)
    return Check(name, True, f"the same for all {looked_at} images that were looked at")


def _agree(printed: Answer, expected: Expected) -> bool:
    """The same class, or one that is as probable: of equals, rounding may choose another."""
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
    """Judges the steps of a plan in their order: what the trained model answers, inference has to print."""

    plan: ChainPlan
    run_check: CheckProgram
    _findings: dict[str, Finding] = field(default_factory=dict)

    def look(self, step: Step) -> Snapshot:
        """The files before a step, so that its own can be told from older ones."""
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
        finding = check_export(self.plan.root, step, before, self.run_check)
        self._findings[step.name] = finding
        return finding.checks

    def _infer(self, step: Step, before: Snapshot) -> list[Check]:
        finding = next((self._findings[name] for name in step.needs if name in self._findings), None)
        # The 32-line layout is that of classifiers; the other one serves detectors and readers of text, too.
        return check_answers(self._log(step), finding, must_classify=self.plan.layout == 32)
