"""Weights, inputs and gradients as the layers quantize them."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.analysis.operands import view_gradients, view_inputs, view_weights
from lowbit.data import Batch
from lowbit.layers import prepare
from lowbit.recipe import make_recipe
from tests.cli.conftest import W4A4G4
from tests.tiny_net import build_tiny


def test_inputs_are_those_of_the_model_in_full(model, loader):
    batch = loader.batches[0]
    found = view_inputs(model, batch)
    assert list(found) == ["first", "left", "right", "twice", "late", "head"]
    scale = float(model.first.input_quantizer.step.value)
    on_grid = np.clip(np.rint(batch.images / scale), -8, 7) * scale
    sqnr = 10 * np.log10((batch.images**2).sum() / ((on_grid - batch.images) ** 2).sum())
    assert found["first"].health.sqnr == pytest.approx(sqnr, abs=0.01)
    assert sum(found["first"].histogram.levels) == batch.images.size
    values = found["first"].values()
    assert values["dead"] == values["histogram"]["dead"] == found["first"].histogram.levels.count(0)
    assert list(view_weights(model)) == list(found)


def test_gradients_of_a_step_that_changes_nothing():
    model = prepare(build_tiny(), make_recipe(W4A4G4))
    rng = np.random.default_rng(0)
    batch = Batch(rng.standard_normal((4, 3, 32, 32), np.float32), np.array([0, 1, 2, 3]), 1.0)
    before = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    found = view_gradients(model, batch)
    assert set(found) == {"conv", "head"}  # the images themselves need no gradient
    assert set(found["head"]) == {"grad_input.grad_output", "grad_weight.grad_output"}
    # One value in 4 bits has a scale of its own: exact, but for the last bit of fp32.
    assert 5 < found["head"]["grad_input.grad_output"] < 40 < found["head"]["grad_weight.grad_output"]
    for name, tensor in model.state_dict().items():
        assert (tensor.numpy() == before[name]).all(), name
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())
    assert not model.training


def test_qat_has_no_quantized_gradients(model, loader):
    assert view_gradients(model, loader.batches[0]) == {}
    assert paddle.is_grad_enabled()
