"""PyTorch's networks are the ones that Paddle trains. PyTorch is no dependency: without it they skip."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from lowbit.bench.sides import Case
from lowbit.bench.torch_side import NETWORKS, torch_step
from lowbit.models import build_model


@pytest.mark.parametrize("name", NETWORKS)
def test_same_parameters_as_paddle(name):
    shapes = sorted(tuple(p.shape) for p in NETWORKS[name](10).parameters())
    ours = [p for p in build_model(name, 10).parameters() if not p.stop_gradient]
    linear = {(512, 10): (10, 512), (64, 10): (10, 64)}  # Paddle's Linear has its weight the other way round
    assert shapes == sorted(linear.get(tuple(p.shape), tuple(p.shape)) for p in ours)


def test_a_step_runs_and_other_models_have_none():
    torch_step(Case("resnet20", 32, 2), 10)()
    assert torch_step(Case("mobilenet_v3_small", 32, 2), 10) is None
