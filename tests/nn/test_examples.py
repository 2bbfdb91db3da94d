"""The examples in the docstrings of fused blocks and of tensors' shapes do what they say."""

from __future__ import annotations

import doctest
import importlib

import paddle
import pytest

MODULES = ["bn_folding", "fused_blocks", "fused_steps", "linear_ops"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"lowbit.nn.{name}")
    done = doctest.testmod(module, extraglobs={"paddle": paddle})
    assert done.attempted and not done.failed
