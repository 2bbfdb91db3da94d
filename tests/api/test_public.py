"""`import lowbit`: its names, its speed, and the examples of its docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import lowbit

NAMES = [
    "Engine",
    "LowbitError", "PACT", "QAT", "Recipe", "__version__", "accelerate", "advise", "analyze", "calibrate",
    "export", "fuse", "quantize", "verify",
]  # fmt: skip
MODULES = ("accelerate", "advise", "analysis", "deploy", "quantize", "verify")


def test_dir_shows_the_public_names():
    assert dir(lowbit) == NAMES == sorted(lowbit.__all__)
    assert all(getattr(lowbit, name) for name in NAMES)
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        lowbit.quantise  # noqa: B018


def test_modules_can_be_imported_from_it():
    assert importlib.import_module("lowbit.deploy").export_onnx


def test_import_is_fast_and_leaves_paddle_for_later():
    program = "import sys, lowbit; dir(lowbit); print(any('paddle' in name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    heavy = {"paddle", "numpy", "onnx", "pydantic", "rich", "typer", "yaml"}
    program = f"import sys, lowbit; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path):
    module = importlib.import_module(f"lowbit.api.{name}")
    done = doctest.testmod(module, extraglobs={"folder": tmp_path})
    assert done.attempted and not done.failed


@pytest.mark.parametrize("name", [name for name in NAMES if name.islower() and name[0] != "_"])
def test_every_function_has_types_and_an_example(name):
    function = getattr(lowbit, name)
    hints = typing.get_type_hints(function, include_extras=True)
    assert set(inspect.signature(function).parameters) | {"return"} == set(hints)
    assert ">>>" in function.__doc__


def test_the_package_says_that_it_is_typed():
    assert (Path(lowbit.__file__).parent / "py.typed").is_file()
