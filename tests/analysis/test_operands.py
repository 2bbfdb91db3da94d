"""Weights, inputs and gradients as the layers quantize them."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.analysis.operands import view_gradients, view_inputs, view_operand, view_weights
from lowbit.data import Batch
from lowbit.nn import prepare
from lowbit.nn.qtensor import QTensor, round_operand
from lowbit.numerics import parse_grid
from lowbit.recipe import make_recipe
from tests.support.commands import W4A4G4
from tests.support.tiny_net import build_tiny


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
    sqnr = {operand: view.health.sqnr for operand, view in found["head"].items()}
    assert 5 < sqnr["grad_input.grad_output"] < 40 < sqnr["grad_weight.grad_output"]
    assert sum(found["head"]["grad_input.grad_output"].histogram.levels) == 4 * 4  # logits of images
    for name, tensor in model.state_dict().items():
        assert (tensor.numpy() == before[name]).all(), name
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())
    assert not model.training


@given(
    x=arrays(np.float32, (3, 4), elements=st.floats(-20, 20, width=32)),
    scale=arrays(np.float32, (3, 1), elements=st.floats(0.125, 4, width=32)),
)
def test_the_histogram_of_what_was_made_is_in_steps_of_its_grid(x, scale):
    made = round_operand(paddle.to_tensor(x), paddle.to_tensor(scale), parse_grid("int4"))
    found = view_operand(paddle.to_tensor(x), made)
    levels = [0] * 16
    for value in made.data.numpy().ravel():
        levels[int(value) + 8] += 1
    assert found.histogram.levels == levels
    assert found.values()["dead"] == levels.count(0)
    assert sum(found.histogram.counts) == x.size


def test_a_mean_of_two_roundings_has_half_steps():
    made = QTensor(
        data=paddle.to_tensor([-16, 1], "int8"), scale=paddle.to_tensor([0.5]), lowest=-16, highest=14
    )
    found = view_operand(paddle.to_tensor([-8.0, 0.5]), made).histogram
    assert (found.lowest, found.highest, found.levels[0], found.levels[17]) == (-16, 14, 1, 1)


def test_plain_values_have_no_grid():
    found = view_operand(paddle.to_tensor([1.0, 2.0]), QTensor(data=paddle.to_tensor([1.0, 2.5])))
    assert found.health.sqnr == pytest.approx(10 * np.log10(5 / 0.25)) and found.histogram is None
    assert found.values()["histogram"] is None


def test_qat_has_no_quantized_gradients(model, loader):
    assert view_gradients(model, loader.batches[0]) == {}
    assert paddle.is_grad_enabled()
