"""Runs the steps of a plan in order, judges each, and writes the result after each."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import lowbit
from lowbit.errors import LowbitError
from lowbit.tipc.display import Display
from lowbit.tipc.judge import Judge
from lowbit.tipc.process import Outcome, run_program
from lowbit.tipc.result import (
    ChainResult,
    ChainStepResult,
    Check,
    Status,
    append_status,
    log_tail,
    status_line,
    write_result,
)
from lowbit.tipc.step_outputs import find_weights
from lowbit.tipc.steps import ChainPlan, Environment, Step, StepKind, in_directory
from lowbit.training.process import Interruption

_CHECK_SECONDS = 600.0  # for opening an exported model and comparing it
_ALMOST_FULL = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True)
class ChainLimits:
    """Seconds for each step and for all of them; None: no limit."""

    step: float | None = None
    total: float | None = None


def run_plan(
    plan: ChainPlan, *, limits: ChainLimits | None = None, display: Display | None = None
) -> ChainResult:
    """Run the steps that can run, and judge them. Ctrl-C ends the current step and what it has started.

    >>> run_plan(make_plan(read_config(path), "lite_train_lite_infer")).passed  # doctest: +SKIP
    True
    """
    check_interpreter(plan)
    with Interruption() as interruption, display or Display() as shown:
        return _Runner(plan, limits or ChainLimits(), shown, interruption).run()


def check_interpreter(plan: ChainPlan) -> None:
    """Raise an error before the first step if the config's interpreter is missing."""
    for name in {step.arguments[0] for step in plan.steps}:
        if shutil.which(name) is None and not (plan.root / name).is_file():
            raise LowbitError(
                f'the interpreter "{name}" of {plan.config} is not on the PATH; name one with --python, '
                "such as --python python3"
            )


class _Runner:
    def __init__(
        self, plan: ChainPlan, limits: ChainLimits, display: Display, interruption: Interruption
    ) -> None:
        self._plan, self._limits, self._display = plan, limits, display
        self._interruption = interruption
        self._judge = Judge(plan, self._run_check)
        self._start = time.monotonic()
        self._result = ChainResult(
            config=plan.config,
            layout=plan.layout,
            model_name=plan.model_name,
            mode=plan.mode,
            root=str(plan.root),
            output=plan.output,
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
            steps=tuple(_not_run(step, "the run has not reached it") for step in plan.steps),
            notes=plan.notes,
        )

    def run(self) -> ChainResult:
        self._keep()
        for index, step in enumerate(self._plan.steps):
            self._display.begin(index + 1, len(self._plan.steps), step.kind.value, step.name)
            try:
                found = self._take(step)
            except KeyboardInterrupt:  # a second Ctrl-C
                found = replace(_not_run(step, "interrupted"), status=Status.FAILED)
            self._result = self._result.with_step(index, found)
            line = status_line(found, self._plan.model_name)
            self._display.end(found, line)
            self._write(partial(append_status, self._plan, line))
            self._keep()
        self._keep(finished=True)
        return self._result

    def _keep(self, *, finished: bool = False) -> None:
        self._result = replace(
            self._result,
            seconds=time.monotonic() - self._start,
            finished=finished,
            interrupted=self._interruption.asked,
        )
        self._write(lambda: write_result(self._result))

    def _write(self, write: Callable[[], None]) -> None:
        """Write a result; on a full disk, warn and continue, so that the verdict is shown."""
        try:
            write()
        except LowbitError as error:
            if self._result.unwritten is None:
                self._display.warn(str(error))
            self._result = replace(self._result, unwritten=str(error))

    def _take(self, step: Step) -> ChainStepResult:
        if step.skipped is not None:
            return replace(_not_run(step, step.skipped), status=Status.SKIPPED)
        if self._interruption.asked:
            return _not_run(step, "interrupted")
        if self._time_left() == 0:
            return _not_run(step, f"the {self._limits.total:.4g} s for all steps are over")
        lacking = next((name for name in step.needs if self._status(name) is not Status.PASSED), None)
        if lacking is not None:
            return _not_run(step, f"needs {lacking}, which {_PAST[self._status(lacking)]}")
        if step.needs and step.weights and find_weights(self._plan.root / step.weights) is None:
            reason = f"the checkpoint {step.weights} is gone, which {step.needs[0]} had left"
            return replace(_not_run(step, reason), status=Status.FAILED)
        return self._run(step)

    def _run(self, step: Step) -> ChainStepResult:
        if step.kind is StepKind.TRAIN and self._plan.mode.startswith("lite"):
            # What an earlier run on lite data left is worth nothing, and of some models takes gigabytes.
            shutil.rmtree(self._plan.root / step.folder, ignore_errors=True)
        before = self._judge.look(step)
        outcome = self._program(step.arguments, step.log, step.environment, self._timeout(), step.directory)
        checks: list[Check] = []
        reason = self._failure_reason(step, outcome)
        if reason is None:
            self._make_links(step)
            checks = self._judge.judge(step, before)
            failed = next((check for check in checks if check.passed is False), None)
            reason = None if failed is None else f"{failed.name}: {failed.detail}"
        notes = [step.note] if step.note else []
        if outcome.left_behind:
            notes.append(f"it left {outcome.left_behind} processes behind, which were ended")
        return replace(
            _not_run(step, reason),
            status=Status.PASSED if reason is None else Status.FAILED,
            seconds=outcome.seconds,
            exit_code=outcome.exit_code,
            checks=tuple(checks),
            notes=tuple(notes),
        )

    def _make_links(self, step: Step) -> None:
        """Give the step's files the names that later steps expect."""
        folder = self._plan.root / (step.leaves or step.folder)
        for name, target in step.links.items():
            if (folder / target).is_file() and not (folder / name).exists():
                (folder / name).symlink_to(target)

    def _run_check(self, step: Step, arguments: Sequence[str]) -> Outcome:
        self._display.line("comparing the exported model with the trained one")
        log = f"{step.log.removesuffix('.log')}_check.log"
        # A repository may have folders that are called like packages: ours are not to be looked for there.
        paths = filter(None, (os.environ.get("PYTHONPATH"), str(Path(lowbit.__file__).parents[1])))
        variables = {**step.environment, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}
        left = self._time_left()
        timeout = _CHECK_SECONDS if left is None else min(_CHECK_SECONDS, left)
        return self._program(arguments, log, variables, timeout)

    def _program(
        self,
        arguments: Sequence[str],
        log: str,
        environment: Environment,
        timeout: float | None,
        directory: str = ".",
    ) -> Outcome:
        program, *rest = arguments
        if "/" in program:  # an interpreter in the repository, from whichever folder
            program = os.path.abspath(self._plan.root / program)
        return run_program(
            (program, *rest),
            folder=self._plan.root / directory,
            log=self._plan.root / log,
            environment=environment,
            timeout=timeout,
            on_line=self._display.line,
            is_interrupted=lambda: self._interruption.asked,
        )

    def _status(self, name: str) -> Status:
        return next(step.status for step in self._result.steps if step.name == name)

    def _time_left(self) -> float | None:
        if self._limits.total is None:
            return None
        return max(0.0, self._limits.total - (time.monotonic() - self._start))

    def _timeout(self) -> float | None:
        limits = [limit for limit in (self._limits.step, self._time_left()) if limit is not None]
        return min(limits, default=None)

    def _failure_reason(self, step: Step, outcome: Outcome) -> str | None:
        """Why the program itself failed, or None."""
        if outcome.ended is not None:
            return outcome.ended
        if outcome.exit_code == 0:
            return None
        full = shutil.disk_usage(_existing(self._plan.root / step.folder)).free < _ALMOST_FULL
        lines = [line.strip() for line in log_tail(self._plan.root / step.log, 20) if line.strip()]
        words = [_exit_words(outcome.exit_code), *(["the disk is full"] if full else []), *lines[-1:]]
        return ": ".join(words)


_PAST = {Status.FAILED: "failed", Status.SKIPPED: "is skipped", Status.NOT_RUN: "was not run"}


def _not_run(step: Step, reason: str | None) -> ChainStepResult:
    return ChainStepResult(
        name=step.name,
        kind=step.kind.value,
        command=f"{in_directory(step, shlex.join(step.arguments))} > {shlex.quote(step.log)} 2>&1 ",
        log=step.log,
        reason=reason,
    )


def _exit_words(code: int | None) -> str:
    if code is not None and code < 0:
        word = f"ended by signal {signal.Signals(-code).name}"
        return f"{word} (out of memory, or killed)" if -code == signal.SIGKILL else word
    return f"exit code {code}"


def _existing(path: Path) -> Path:
    """The path, or the nearest parent that exists."""
    return path if path.exists() else _existing(path.parent)
