"""Runs an example as its reader does, in a process of its own, and reads what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Example:
    """What an example printed, and the folder that it wrote to."""

    printed: str
    folder: Path

    def figure(self, before: str) -> float:
        """The number that stands behind these words."""
        return float(re.search(rf"{re.escape(before)}\s*([\d.]+)", self.printed)[1])

    def agreements(self) -> dict[str, float]:
        """Percent of the images on which each engine names the trained model's class."""
        found = re.findall(r"^(.+?) [\d.]+: \d+ images: .* same class for ([\d.]+)%$", self.printed, re.M)
        return {engine: float(percent) for engine, percent in found}

    def onnx_types(self) -> Counter[str]:
        """How many of the ONNX file's constants of two and more axes, its weights, have which type."""
        model = onnx.load(str(self.folder / "model.onnx"))
        weights = [constant for constant in model.graph.initializer if len(constant.dims) > 1]
        return Counter(onnx.TensorProto.DataType.Name(constant.data_type) for constant in weights)


@pytest.fixture
def run_example(tmp_path) -> Callable[[str], Example]:
    def run(name: str) -> Example:
        command = [sys.executable, str(ROOT / "examples" / name), str(tmp_path / "made")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=900)
        assert done.returncode == 0, done.stderr
        return Example(done.stdout, tmp_path / "made")

    return run
