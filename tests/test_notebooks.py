"""The notebooks run from top to bottom, without Jupyter, and are stored without outputs."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


DISPLAY = """\
def display(value):
    if value is not None:
        print(value)
        assert "<table" in value._repr_html_()
"""


def _code_cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def _program(path: Path) -> str:
    """The code cells as one program; as in Jupyter, the value of a cell's last line is shown."""
    parts = [DISPLAY]
    for cell in _code_cells(path):
        text = "".join(cell["source"])
        last = ast.parse(text).body[-1]
        if isinstance(last, ast.Expr):
            lines = text.splitlines()
            text = "\n".join([*lines[: last.lineno - 1], f"display({ast.get_source_segment(text, last)})"])
        parts.append(text)
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path):
    for cell in _code_cells(path):
        assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = tmp_path / f"{path.stem}.py"  # a file: Paddle's export reads the source of `forward`
    program.write_text(_program(path), "utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    accuracies = [float(found) for found in re.findall(r"^[^:\n]+: ([\d.]+)%$", done.stdout, re.MULTILINE)]
    assert len(accuracies) >= 2 and min(accuracies) > 80, done.stdout
    assert "passed" in done.stdout and "Exported to" in done.stdout and "cost most first" in done.stdout
    assert list((tmp_path / "out").glob("*/inference.onnx"))


def test_both_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["quantize_my_model", "train_in_4_bits"]
