"""The registry of fused blocks holds for the code it was written for, and for no other."""

from __future__ import annotations

import dataclasses

import pytest
from paddle import nn
from paddle.vision.models.resnet import BasicBlock

from lowbit.nn.fused_block_registry import REGISTRY, source_digest
from lowbit.nn.fused_blocks import fuse


@pytest.mark.parametrize("kind", REGISTRY, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_known_class_is_as_it_was_when_its_fused_form_was_written(kind: type[nn.Layer]) -> None:
    assert REGISTRY[kind].is_unchanged(kind), f"its digest is now {source_digest(kind)}"


def test_a_class_whose_forward_changed_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuse(BasicBlock(4, 4)).fused
    changed = dataclasses.replace(REGISTRY[BasicBlock], digest="another")
    monkeypatch.setitem(REGISTRY, BasicBlock, changed)
    report = fuse(BasicBlock(4, 4))
    assert not report.fused and "the forward of BasicBlock is neither known nor" in report.unfused["bn1"]


def test_a_class_without_source_has_no_digest() -> None:
    compiled = type("Compiled", (nn.Layer,), {"forward": len})
    assert source_digest(compiled) == ""
