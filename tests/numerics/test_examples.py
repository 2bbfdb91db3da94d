"""The examples in the docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import paddle
import pytest

import lowbit.numerics

MODULES = [module.name for module in pkgutil.iter_modules(lowbit.numerics.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"lowbit.numerics.{name}")
    words = {"paddle": paddle, "parse_grid": lowbit.numerics.parse_grid}
    assert doctest.testmod(module, extraglobs=words).failed == 0
