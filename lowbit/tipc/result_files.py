"""Where a chain's result is kept: results.json, results.xml, and the original's results_python.log."""

from __future__ import annotations

import json
from pathlib import Path

from lowbit.errors import LowbitError
from lowbit.tipc.junit import junit_xml
from lowbit.tipc.result import ChainResult, Status, StepResult, read_values
from lowbit.tipc.step import ChainPlan
from lowbit.training.files import write_atomically

JSON_NAME, XML_NAME = "results.json", "results.xml"


def results_folder(root: Path, output: str, config: str) -> Path:
    """A folder of its own for each config: several of them have the same model and mode."""
    return root / output / Path(config).stem


def status_line(result: StepResult, model_name: str) -> str:
    """The line that tools look for in `results_python.log`.

    >>> step = StepResult(name="t", kind="train", command="python train.py", log="t.log")
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
    """The result of the last run, or an error that says that there is none."""
    path = folder / JSON_NAME
    if not path.is_file():
        raise LowbitError(f"no {path}: this config has not been run in this mode yet; use lowbit tipc run")
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LowbitError(f"{path} cannot be read ({error}); run the chain again") from None
    return read_values(values, str(path))
