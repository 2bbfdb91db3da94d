"""Both executors give the same run; what cannot run in integers is said, or is an error."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.kernels.gemm import Geometry
from lowbit.nn import convert as module
from lowbit.nn import int_matmul as products
from lowbit.nn import is_quantized, prepare
from lowbit.nn.convert import set_executor
from lowbit.nn.int_matmul import in_integers, simulate
from lowbit.nn.linear_ops import Convolution
from lowbit.nn.qt_autograd import integer_scale
from lowbit.nn.qtensor import QTensor
from lowbit.recipe import make_recipe

GRADIENT = {"grid": "int4", "rounding": "stochastic"}


def _recipe(dy_of_grad_weight="C", dy_of_grad_input="N", weight="C"):
    x = {"grid": "int4", "sign": "auto", "observer": "mse"}
    w = {"grid": "int4"}
    return make_recipe(
        {
            "rules": [
                {
                    "forward": {"input": x, "weight": {**w, "granularity": "N"}},
                    "grad_input": {
                        "grad_output": {**GRADIENT, "granularity": dy_of_grad_input},
                        "weight": {**w, "granularity": weight},
                    },
                    "grad_weight": {
                        "grad_output": {**GRADIENT, "granularity": dy_of_grad_weight},
                        "input": x,
                    },
                }
            ]
        }
    )


def _model():
    paddle.seed(5)
    return nn.Sequential(
        nn.Conv2D(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2D(8, 8, 3, stride=2, groups=4),
        nn.ReLU(),
        nn.Conv2DTranspose(8, 6, 3, stride=2, groups=2, output_padding=1),
        nn.AdaptiveAvgPool2D(2),
        nn.Flatten(),
        nn.Linear(24, 5),
    )


def _losses(executor, recipe, steps=4):
    model = prepare(_model(), recipe)
    set_executor(model, executor)
    optimizer = paddle.optimizer.Momentum(0.05, parameters=model.parameters())
    rng, losses = np.random.default_rng(0), []
    for _ in range(steps):
        x = paddle.to_tensor(rng.standard_normal([4, 3, 9, 9]).astype(np.float32))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    return losses


def test_both_executors_give_the_same_run_to_the_last_bit():
    """Where scales come out of the sums, sums are below 2^24, and nothing is rounded in another order."""
    losses = _losses("integer", _recipe())
    assert losses == _losses("simulate", _recipe())
    assert len(set(losses)) == len(losses)


def test_and_nearly_the_same_where_sums_are_split():
    recipe = _recipe(dy_of_grad_weight="NC", dy_of_grad_input="NHW")
    np.testing.assert_allclose(_losses("auto", recipe), _losses("simulate", recipe), rtol=1e-3)


@pytest.mark.parametrize("granularities", [("C", "N"), ("NC", "NHW")])
def test_channels_last_run_in_integers_too(granularities, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(in_integers(*arguments))
        return calls[-1]

    def gradients(executor):
        paddle.seed(5)
        conv = nn.Conv2D(4, 6, 3, stride=2, padding=[[0, 0], [1, 0], [0, 2], [0, 0]], data_format="NHWC")
        second = nn.Conv2DTranspose(6, 5, 3, stride=2, data_format="NHWC")
        if granularities[1] == "NHW":  # not for a transposed convolution in integers
            second = nn.Conv2D(6, 5, 3, data_format="NHWC")
        model = prepare(nn.Sequential(conv, nn.ReLU(), second), _recipe(*granularities))
        set_executor(model, executor)
        x = np.random.default_rng(0).standard_normal([2, 8, 9, 4]).astype(np.float32)
        y = model(paddle.to_tensor(x))
        y.square().mean().backward()
        return [y.numpy(), *(parameter.grad.numpy() for parameter in model.parameters())]

    expected = gradients("simulate")
    monkeypatch.setattr(products, "in_integers", counted)
    for found, wanted in zip(gradients("integer"), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    # Each in its own layout and once more channels first; the gradient of the input is not wanted.
    assert len(calls) == 10 and all(call is not None for call in calls)


def test_what_cannot_run_in_integers():
    recipe = _recipe(dy_of_grad_weight="NHW")
    with pytest.raises(
        LowbitError, match=r"integer cannot be had.*grad_weight: grad_output has scales per NHW"
    ):
        set_executor(prepare(_model(), recipe), "integer")
    (line,) = set_executor(prepare(_model(), recipe), "auto")
    assert "simulated in floats" in line and "0 and 3 more" in line
    assert set_executor(prepare(_model(), _recipe()), "auto") == ["products in integers in C++"]
    assert "asked for" in set_executor(prepare(_model(), _recipe()), "simulate")[0]


def test_without_kernels(monkeypatch):
    monkeypatch.setattr(module, "why_missing", lambda: "the C++ kernels were not built")
    model = prepare(_model(), _recipe())
    assert set_executor(model, "auto") == [
        "products of integers are simulated in floats: the C++ kernels were not built"
    ]
    with pytest.raises(LowbitError, match="kernels were not built"):
        set_executor(model, "integer")


def test_a_model_that_is_not_quantized_has_no_executor():
    assert set_executor(nn.Linear(2, 2), "integer") == []


def _qat(executor, model=None, *, recipe=None, **words):
    """Who multiplies in a model of QAT, and the lines about it."""
    spec = {"grid": "int8"}
    recipe = recipe or {"rules": [{"forward": {"input": spec, "weight": spec}}]}
    model = prepare(model or _model(), make_recipe(recipe), paddle.zeros([1, 3, 9, 9]))
    lines = set_executor(model, executor, **words)
    (used,) = {layer.executor for layer in model.sublayers() if is_quantized(layer)}
    return used, "".join(lines)


def test_quantization_aware_training_has_its_forward_in_integers():
    assert _qat("auto") == ("auto", "forward products in integers in C++")
    assert _qat("integer") == ("integer", "forward products in integers in C++")
    used, line = _qat("simulate")
    assert used == "simulate" and "simulated in floats, as asked for" in line
    used, line = _qat("auto", device="gpu")
    assert used == "simulate" and "not for gpu" in line


@pytest.mark.parametrize(
    ("recipe", "words", "why"),
    [
        ({"rules": [{"forward": {"input": {"grid": "int8"}}}]}, {}, "weight is on the grid full"),
        (None, {"qat_in_floats": True}, "mixed precision"),
        (
            {
                "rules": [{"forward": {"input": {"grid": "int8"}, "weight": {"grid": "int8"}}}],
                "batch_norm": {"fold": "training"},
            },
            {},
            "batch norm folded",
        ),
    ],
)
def test_and_where_it_has_not_that_is_said_or_an_error(recipe, words, why):
    def folded():
        return nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4))

    model = folded if recipe and "batch_norm" in recipe else _model
    _, line = _qat("auto", model(), recipe=recipe, **words)
    assert "but for these, simulated in floats" in line and why in line
    with pytest.raises(LowbitError, match=f"integer cannot be had.*{why}"):
        _qat("integer", model(), recipe=recipe, **words)


GEOMETRY = Geometry(
    input=(2, 3, 4, 4), outputs=5, kernel=(3, 3), stride=(1, 1), padding=(0,) * 4, dilation=(1, 1), groups=1
)


def _operand(shape: list[int], scale: list[int], *, bits: int, seed: int) -> QTensor:
    random, most = np.random.default_rng(seed), 2 ** (bits - 1) - 1
    integers = paddle.to_tensor(random.integers(-most, most + 1, shape).astype(np.int8))
    scales = paddle.to_tensor(random.uniform(0.1, 1, scale).astype(np.float32))
    return QTensor(data=integers, scale=scales, lowest=-most, highest=most)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_product_is_whole_multiples_of_its_scale(bits):
    x = _operand([2, 3, 4, 4], [2, 1, 1, 1], bits=bits, seed=0)
    weight = _operand([5, 3, 3, 3], [5, 1, 1, 1], bits=bits, seed=1)
    y = simulate(Convolution(GEOMETRY), "forward", x, weight)
    scale, has_high_bits = integer_scale(Convolution(GEOMETRY), x, weight)
    assert scale.shape == [2, 5, 1, 1] and has_high_bits == (bits == 8)
    multiples = y.numpy() / scale.numpy()
    np.testing.assert_allclose(multiples, np.rint(multiples), atol=1e-4, rtol=1e-6)
    assert np.abs(multiples).max() > 10


def test_scales_that_differ_in_the_sum_give_none():
    x = _operand([2, 3, 4, 4], [2, 3, 1, 1], bits=4, seed=0)
    weight = _operand([5, 3, 3, 3], [1, 1, 1, 1], bits=4, seed=1)
    assert integer_scale(Convolution(GEOMETRY), x, weight) is None


def test_an_operand_in_full_has_none():
    full = QTensor(data=paddle.zeros([2, 3, 4, 4]))
    weight = _operand([5, 3, 3, 3], [1, 1, 1, 1], bits=4, seed=1)
    assert integer_scale(Convolution(GEOMETRY), full, weight) is None
