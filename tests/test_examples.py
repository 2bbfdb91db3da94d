"""The examples in docstrings do what they say."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
from pathlib import Path

import paddle
import pytest

import lowbit
from lowbit.models import build_model
from lowbit.nn import prepare
from lowbit.numerics import parse_grid, parse_scaling
from lowbit.recipe import dump_recipe, make_recipe
from lowbit.recipe.plan import Forward
from lowbit.recipe.spec import TensorSpec

ROOT = Path(lowbit.__file__).parent
# What an example may use besides the names of its module.
NAMES = {
    **{"paddle": paddle, "dataclasses": dataclasses, "build_model": build_model, "prepare": prepare},
    **{"parse_grid": parse_grid, "parse_scaling": parse_scaling, "TensorSpec": TensorSpec},
    **{"make_recipe": make_recipe, "dump_recipe": dump_recipe, "Forward": Forward},
}
# Their examples show calls with objects of a run or of the machine, or take long.
ILLUSTRATIONS = {
    *("accel/amp_autocast.py", "kernels/build.py", "kernels/gemm.py", "kernels/library.py"),
    "kernels/unrounded.py",
    *("models/build.py", "models/vision.py", "models/weights.py", "training/mixed_precision.py"),
}


def _modules() -> list[str]:
    files = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.rglob("*.py"))]
    files = [file for file in files if ">>>" in (ROOT / file).read_text("utf-8")]
    return [file for file in files if file not in ILLUSTRATIONS and not file.startswith("api/")]


@pytest.mark.parametrize("file", _modules())
def test_examples(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"lowbit.{file.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}"
    assert doctest.testmod(importlib.import_module(name), extraglobs=NAMES).failed == 0


def test_illustrations_are_still_needed() -> None:
    assert all(">>>" in (ROOT / file).read_text("utf-8") for file in ILLUSTRATIONS)
