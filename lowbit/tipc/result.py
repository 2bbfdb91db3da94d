"""What came of a chain: each step's status, the checks that led to it, and the verdict over all."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from lowbit.errors import LowbitError


class Status(str, Enum):
    """What became of a step. SKIPPED: its device is not here. NOT_RUN: what it needs is not there."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Check:
    """Something that a step must have done; `passed` is None where it could not be checked."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A step and what became of it; `reason` says why it did not pass."""

    name: str
    kind: str
    command: str
    log: str
    status: Status = Status.NOT_RUN
    reason: str | None = None
    seconds: float = 0.0
    exit_code: int | None = None
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What could not be checked, and why."""
        return tuple(f"{check.name}: {check.detail}" for check in self.checks if check.passed is None)


@dataclass(frozen=True, kw_only=True)
class ChainResult:
    """All steps of a run. `finished` is False while it runs, and where it was killed."""

    config: str
    layout: int
    model_name: str
    mode: str
    root: str
    output: str
    started: str
    steps: tuple[StepResult, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    finished: bool = False
    interrupted: bool = False
    unwritten: str | None = None  # why the result is not on disk

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(step.status.value for step in self.steps)
        return {status.value: found[status.value] for status in Status}

    @property
    def passed(self) -> bool:
        """Every step that had to run did its work. Where none ran, nothing was shown."""
        counts = self.counts
        return (
            self.finished
            and not self.interrupted
            and self.unwritten is None
            and counts["passed"] > 0
            and counts["failed"] + counts["not run"] == 0
        )

    def with_step(self, index: int, step: StepResult) -> ChainResult:
        """The same with one step's result replaced."""
        return replace(self, steps=(*self.steps[:index], step, *self.steps[index + 1 :]))

    def values(self) -> dict[str, Any]:
        """In JSON's types, verdict and counts included."""
        return {**asdict(self), "passed": self.passed, "counts": self.counts}


def read_values(values: Any, source: str) -> ChainResult:
    """The result that `ChainResult.values` was made of; `source` is what messages call it."""
    try:
        known = {key: value for key, value in values.items() if key not in ("passed", "counts")}
        steps = tuple(map(_read_step, known.pop("steps")))
        return ChainResult(**{**known, "notes": tuple(known["notes"])}, steps=steps)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LowbitError(
            f"{source} is not a result of lowbit tipc run ({error}); run the chain again"
        ) from None


def _read_step(values: dict[str, Any]) -> StepResult:
    checks = tuple(Check(**check) for check in values["checks"])
    status = Status(values["status"])
    return StepResult(**{**values, "status": status, "checks": checks, "notes": tuple(values["notes"])})
