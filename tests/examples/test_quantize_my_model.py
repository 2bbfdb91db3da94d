"""The whole way from Python: few lines of lowbit, and no import but `lowbit`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "examples/quantize_my_model.py"


def test_few_lines_and_one_import():
    text = SOURCE.read_text("utf-8")
    tree = ast.parse(text)
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [module for module in modules if module.startswith("lowbit")] == ["lowbit"]
    calls = re.findall(r"lowbit\.(\w+)\(", text)
    assert len(calls) <= 12
    assert {"quantize", "export", "verify", "analyze", "accelerate"} <= set(calls)


def test_it_trains_exports_verifies_and_analyzes(run_example):
    made = run_example("quantize_my_model.py")
    for engine in ("Paddle Inference", "ONNX Runtime", "OpenVINO", "lowbit runtime"):
        # Paddle's int8 form is there, too, where it was measured to be faster.
        assert made.printed.count(f"passed: {engine}") >= 2
    assert "FAILED" not in made.printed
    accuracies = [
        float(found) for found in re.findall(r"^trained model +([\d.]+) %", made.printed, re.MULTILINE)
    ]
    assert len(accuracies) == 2 and min(accuracies) > 85
    for folder in ("qat", "low"):
        assert (made.folder / folder / "inference.onnx").is_file()
        assert (made.folder / folder / "inference.json").is_file()
    assert max(map(len, made.printed.splitlines())) <= max(80, len(str(made.folder)) + 60)
