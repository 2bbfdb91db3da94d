"""In evaluation a quantized layer computes in integers; the exact reference gives the same bits."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from lowbit.nn import (
    calibrate,
    deployed_input,
    deployed_weight,
    integer_reference,
    prepare,
    quantize_layer,
)
from lowbit.nn.eval_mode import eval_mode
from lowbit.recipe import make_recipe
from tests.support.quant_layers import LAYERS, PLAN, inputs, seen
from tests.support.tiny_net import TinyNet


@pytest.mark.parametrize("plan", PLAN)
@pytest.mark.parametrize("kind", LAYERS)
def test_evaluation_is_the_trained_computation_in_integers(kind: str, plan: str) -> None:
    layer, x = seen(kind, plan), inputs(kind)
    layer.eval()
    straight_through = layer(x)  # records gradients: fake-quantized values are multiplied
    with paddle.no_grad():
        integers = layer(x)
    np.testing.assert_allclose(integers.numpy(), straight_through.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plan", PLAN)
@pytest.mark.parametrize("kind", LAYERS)
def test_the_exact_reference_gives_the_same_bits(kind: str, plan: str) -> None:
    layer, x = seen(kind, plan), inputs(kind)
    with eval_mode(layer):
        model = layer(x).numpy()
    with integer_reference(layer):
        exact = layer(x).numpy()
    assert (model == exact).all()
    assert layer.training and not hasattr(layer, "_lowbit_exact_product")


def test_the_reference_stays_exact_where_floats_do_not() -> None:
    layer = quantize_layer(nn.Linear(60_000, 1, bias_attr=False), PLAN["pact"], name="wide")
    layer.weight.set_value(paddle.full([60_000, 1], 1.0))
    layer.train()
    layer(paddle.ones([1, 60_000]))
    x = np.ones([1, 60_000], np.float32)
    x[0, 0] = -1.0 / 127  # the sum of 59999 * 127 * 127 - 127 is odd and far above 2^24
    with integer_reference(layer):
        scales = np.float32(deployed_input(layer).scale) * deployed_weight(layer)[1].scale.reshape(-1)[0]
        assert layer(paddle.to_tensor(x)).item() == np.float32(59_999 * 127 * 127 - 127) * scales


@settings(max_examples=30)
@given(bits=st.integers(2, 8), unsigned=st.booleans(), seed=st.integers(0, 1000))
def test_a_whole_model_gives_the_same_integers_in_every_layer(bits: int, unsigned: bool, seed: int) -> None:
    paddle.seed(seed)
    grid = f"{'uint' if unsigned else 'int'}{bits}"
    recipe = make_recipe(
        {
            "rules": [
                {
                    "forward": {
                        "input": {"grid": grid, "scaling": "moving_average"},
                        "weight": {"grid": f"int{bits}", "granularity": "N"},
                    }
                }
            ]
        }
    )
    model = prepare(TinyNet(), recipe)
    images = paddle.randn([2, 3, 8, 8])
    calibrate(model, [images])
    seen: list[np.ndarray] = []
    quantizers = [layer.input_quantizer for layer in model.sublayers() if hasattr(layer, "input_quantizer")]
    for quantizer in quantizers:
        plain = quantizer.integers
        quantizer.integers = lambda x, plain=plain: (seen.append(plain(x)[0].numpy()), plain(x))[1]
    with eval_mode(model):
        model(images)
    ours, seen[:] = list(seen), []
    with integer_reference(model):
        model(images)
    assert len(ours) == len(seen) == len(quantizers)
    assert all((a == b).all() for a, b in zip(ours, seen, strict=True))


def test_in_evaluation_with_gradients_they_still_go_straight_through() -> None:
    layer = seen("conv", "learned")
    layer.eval()
    layer(inputs("conv")).sum().backward()
    assert float(paddle.abs(layer.weight.grad).sum()) > 0
