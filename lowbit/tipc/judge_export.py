"""Whether an export step has left a model that loads and answers as trained."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from lowbit.tipc.finding import Finding, Request, read_finding
from lowbit.tipc.left_files import Snapshot, changed_files, find_weights
from lowbit.tipc.process import Outcome
from lowbit.tipc.result import Check
from lowbit.tipc.step import Step

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
