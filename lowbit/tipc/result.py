"""The result of a chain: its steps, its checks, and the files it is stored in."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from lowbit.errors import LowbitError
from lowbit.files import write_atomically
from lowbit.tipc.steps import ChainPlan


class Status(str, Enum):
    """The status of a step. SKIPPED: this machine lacks its device. NOT_RUN: a step that it needs failed."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Check:
    """Something that a step must have done; `passed` is None where that could not be confirmed."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class ChainStepResult:
    """The result of a step; `reason` says why it did not pass."""

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
    def unconfirmed(self) -> tuple[str, ...]:
        """The checks that could neither pass nor fail, and why."""
        return tuple(f"{check.name}: {check.detail}" for check in self.checks if check.passed is None)


@dataclass(frozen=True, kw_only=True)
class ChainResult:
    """The results of all steps. `finished` is False while it runs, and if it was killed."""

    config: str
    layout: int
    model_name: str
    mode: str
    root: str
    output: str
    started: str
    steps: tuple[ChainStepResult, ...]
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
        """Whether every step that had to run passed, and at least one ran."""
        counts = self.counts
        return (
            self.finished
            and not self.interrupted
            and self.unwritten is None
            and counts["passed"] > 0
            and counts["failed"] + counts["not run"] == 0
        )

    def with_step(self, index: int, step: ChainStepResult) -> ChainResult:
        """The same with one step's result replaced."""
        return replace(self, steps=(*self.steps[:index], step, *self.steps[index + 1 :]))

    def values(self) -> dict[str, Any]:
        """The result in JSON types, with the verdict and the counts."""
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


def _read_step(values: dict[str, Any]) -> ChainStepResult:
    checks = tuple(Check(**check) for check in values["checks"])
    status = Status(values["status"])
    return ChainStepResult(**{**values, "status": status, "checks": checks, "notes": tuple(values["notes"])})


_TAIL = 40  # lines of a failed step's log
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(result: ChainResult) -> str:
    """The result as JUnit XML. Steps that are skipped or not run are skipped cases."""
    name = f"{result.model_name}.{Path(result.config).stem}.{result.mode}"
    counts = result.counts
    suite = ET.Element(
        "testsuite",
        name=_clean(name),
        tests=str(len(result.steps)),
        failures=str(counts["failed"]),
        errors="0",
        skipped=str(counts["skipped"] + counts["not run"]),
        time=f"{result.seconds:.3f}",
        timestamp=result.started,
    )
    for step in result.steps:
        case = ET.SubElement(
            suite, "testcase", name=_clean(step.name), classname=_clean(name), time=f"{step.seconds:.3f}"
        )
        if step.status is Status.FAILED:
            failure = ET.SubElement(case, "failure", message=_clean(step.reason or ""))
            failure.text = _clean("\n".join((step.command, *log_tail(Path(result.root) / step.log, _TAIL))))
        elif step.status is not Status.PASSED:
            ET.SubElement(case, "skipped", message=_clean(f"{step.status.value}: {step.reason}"))
        elif step.checks:
            ET.SubElement(case, "system-out").text = _clean(_checks(step))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _checks(step: ChainStepResult) -> str:
    words = {True: "ok", False: "failed", None: "not confirmed"}
    return "\n".join(f"{words[check.passed]}: {check.name}: {check.detail}" for check in step.checks)


def log_tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log of any size; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 400 * lines))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def _clean(text: str) -> str:
    """Replace control characters, which XML cannot hold."""
    return _NOT_IN_XML.sub("\ufffd", text)


JSON_NAME, XML_NAME = "results.json", "results.xml"


def results_folder(root: Path, output: str, config: str) -> Path:
    """A folder of its own for each config: several of them have the same model and mode."""
    return root / output / Path(config).stem


def status_line(result: ChainStepResult, model_name: str) -> str:
    """The line that tools look for in `results_python.log`.

    >>> step = ChainStepResult(name="t", kind="train", command="python train.py", log="t.log")
    >>> status_line(dataclasses.replace(step, status=Status.PASSED), "resnet18")
    ' Run successfully with command - resnet18 - python train.py!  '
    """
    words = {
        Status.PASSED: "Run successfully with command",
        Status.FAILED: "Run failed with command",
        Status.SKIPPED: f"Skipped ({_flat(result.reason)}) command",
        Status.NOT_RUN: f"Not run ({_flat(result.reason)}) command",
    }
    return f" {words[result.status]} - {model_name} - {result.command}!  "


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())


def append_status(plan: ChainPlan, line: str) -> None:
    """Adds a status line, as the original does: runs and configs follow each other in one file."""
    path = plan.root / plan.results_log
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        raise LowbitError(f"cannot write {path}: {error.strerror}") from None


def write_result(result: ChainResult) -> None:
    """Write results.json and results.xml, each as a whole or not at all."""
    folder = results_folder(Path(result.root), result.output, result.config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LowbitError(f"cannot create {folder}: {error.strerror}") from None
    text = json.dumps(result.values(), indent=2, ensure_ascii=False)
    write_atomically(folder / JSON_NAME, lambda file: file.write_text(text + "\n", "utf-8"))
    xml = junit_xml(result)
    write_atomically(folder / XML_NAME, lambda file: file.write_text(xml, "utf-8"))


def read_result(folder: Path) -> ChainResult:
    """Read the result of the last run."""
    path = folder / JSON_NAME
    if not path.is_file():
        raise LowbitError(f"no {path}: this config has not been run in this mode yet; use lowbit tipc run")
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LowbitError(f"{path} cannot be read ({error}); run the chain again") from None
    return read_values(values, str(path))
