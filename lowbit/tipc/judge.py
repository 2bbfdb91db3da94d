"""Whether a step has done its work: beyond the exit code, what it left and what it printed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lowbit.tipc.finding import Finding
from lowbit.tipc.judge_export import CheckProgram, check_export
from lowbit.tipc.judge_infer import check_answers
from lowbit.tipc.left_files import Snapshot, check_checkpoint, check_weights, take_snapshot
from lowbit.tipc.log_lines import last_accuracy, last_loss
from lowbit.tipc.result import Check
from lowbit.tipc.step import ChainPlan, Step, StepKind


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
        return [*checks, Check("loss", math.isfinite(loss), f"the last one is {loss:g}")]

    def _eval(self, step: Step, before: Snapshot) -> list[Check]:
        accuracy = last_accuracy(self._log(step))
        if accuracy is None:
            return [Check("accuracy", None, "its log has no line like ` * Acc@1 0.564`")]
        return [Check("accuracy", 0 <= accuracy <= 100, f"Acc@1 {accuracy:g}")]

    def _export(self, step: Step, before: Snapshot) -> list[Check]:
        finding = check_export(self.plan.root, step, before, self.run_check)
        self._findings[step.name] = finding
        return finding.checks

    def _infer(self, step: Step, before: Snapshot) -> list[Check]:
        finding = next((self._findings[name] for name in step.needs if name in self._findings), None)
        # The 32-line layout is that of classifiers; the other one serves detectors and readers of text, too.
        return check_answers(self._log(step), finding, must_classify=self.plan.layout == 32)
