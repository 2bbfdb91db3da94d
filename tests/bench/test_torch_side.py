"""PyTorch's networks are the ones that Paddle trains. PyTorch is no dependency: without it they skip."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from lowbit.bench import torch_side
from lowbit.bench.sides import Case
from lowbit.bench.torch_side import NETWORKS, torch_steps
from lowbit.models import build_model


@pytest.mark.parametrize("name", NETWORKS)
def test_same_parameters_as_paddle(name):
    shapes = sorted(tuple(p.shape) for p in NETWORKS[name](10).parameters())
    ours = [p for p in build_model(name, 10).parameters() if not p.stop_gradient]
    linear = {(512, 10): (10, 512), (64, 10): (10, 64)}  # Paddle's Linear has its weight the other way round
    assert shapes == sorted(linear.get(tuple(p.shape), tuple(p.shape)) for p in ours)


@pytest.fixture
def uncompiled(monkeypatch):
    """As compiled, but at once."""
    monkeypatch.setattr(torch_side.torch, "compile", lambda model: model)


def test_steps_run_and_other_models_have_none(uncompiled):
    sides = torch_steps(Case("resnet20", 32, 2), 10, bf16=True, say=lambda line: None)
    kinds = ("fp32", "fp32 compiled", "bf16", "bf16 compiled")
    assert list(sides) == [f"PyTorch {kind}" for kind in kinds]
    for step in sides.values():
        step()
    assert list(torch_steps(Case("resnet20", 32, 2), 10, bf16=False, say=print)) == list(sides)[:2]
    assert not torch_steps(Case("mobilenet_v3_small", 32, 2), 10, bf16=True, say=print)


def test_what_does_not_compile_is_left_out_with_a_line(monkeypatch):
    def failing(model):
        def call(images):
            raise RuntimeError("no C++ compiler\nat all")

        return call

    monkeypatch.setattr(torch_side.torch, "compile", failing)
    lines: list[str] = []
    sides = torch_steps(Case("resnet20", 32, 2), 10, bf16=False, say=lines.append)
    assert list(sides) == ["PyTorch fp32"]
    assert lines[-1] == "PyTorch fp32 compiled is left out, it does not compile here: no C++ compiler"
