from __future__ import annotations

import copy
from contextlib import contextmanager

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.nn import calibrate, prepare
from lowbit.numerics import round_to_grid
from lowbit.numerics.grid import BF16, FP16
from lowbit.recipe import make_recipe
from lowbit.training.mixed_precision import MixedPrecision

GRIDS = {"bf16": BF16, "fp16": FP16}
RECIPES = {
    "lsq": {
        "rules": [
            {
                "forward": {
                    "input": {"grid": "int4", "sign": "auto", "scaling": "learned"},
                    "weight": {"grid": "int4", "granularity": "N", "scaling": "learned"},
                }
            }
        ],
        "calibration": {"steps": 1},
    },
    "pact": {"activation_preprocess_type": "PACT"},
    "mse": {
        "rules": [
            {
                "forward": {
                    "input": {"grid": "int8", "observer": "mse(3)", "scaling": "moving_average"},
                    "weight": {"grid": "int8-narrow", "granularity": "N", "observer": "mse"},
                }
            }
        ]
    },
}


def images() -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(0).standard_normal((8, 3, 6, 6), dtype=np.float32))


def make_model(recipe) -> nn.Layer:
    paddle.seed(3)
    model = nn.Sequential(
        nn.Conv2D(3, 8, 3), nn.ReLU(), nn.Conv2D(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(32, 4)
    )
    prepare(model, make_recipe(recipe))
    calibrate(model, [images()])
    return model


@pytest.fixture(params=RECIPES.values(), ids=RECIPES)
def recipe(request):
    return request.param


@pytest.mark.parametrize("dtype", GRIDS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_quantizers_see_no_mixed_precision_and_products_do(recipe, level, dtype):
    """Both operands of the first layer are those of fp32 to the last bit; the product is on the grid."""
    expected, model = make_model(recipe), make_model(recipe)
    precision = MixedPrecision(level, dtype, "cpu")
    precision.prepare(model, None)
    operands = {}
    for name, net in (("fp32", expected), ("amp", model)):
        for operand in ("input_quantizer", "weight_quantizer"):
            getattr(net[0], operand).register_forward_post_hook(
                lambda _layer, _x, y, name=name, operand=operand: operands.update({(name, operand): y})
            )
    plain = expected[0](images())
    with precision.autocast():
        narrow = model[0](images())
        after = model[1:](narrow).sum()
    after.backward()
    plain.sum().backward()
    for operand in ("input_quantizer", "weight_quantizer"):
        np.testing.assert_array_equal(operands["fp32", operand].numpy(), operands["amp", operand].numpy())
    bias = model[0].bias.reshape([1, -1, 1, 1])
    product = (narrow - bias).detach() if level == "O1" else narrow
    grid = GRIDS[dtype]
    np.testing.assert_allclose(product.numpy(), round_to_grid(product, grid).numpy(), rtol=0, atol=1e-6)
    assert not np.array_equal(plain.numpy(), narrow.numpy())
    np.testing.assert_allclose(plain.numpy(), narrow.numpy(), rtol=0, atol=0.05)
    for (name, kept), (_, other) in zip(
        sorted(expected[0].state_dict().items()), sorted(model[0].state_dict().items()), strict=True
    ):
        assert other.dtype == kept.dtype
        np.testing.assert_array_equal(kept.numpy(), other.numpy(), err_msg=name)


def test_evaluation_is_in_fp32(recipe):
    expected, model = make_model(recipe).eval(), make_model(recipe).eval()
    MixedPrecision("O2", "fp16", "cpu").prepare(model, None)
    with paddle.no_grad():
        np.testing.assert_array_equal(expected(images()).numpy(), model(images()).numpy())


def test_a_copy_is_a_model_of_its_own(recipe):
    model = make_model(recipe)
    precision = MixedPrecision("O1", "bf16", "cpu")
    precision.prepare(model, None)
    other = copy.deepcopy(model)
    other[0].weight.set_value(paddle.zeros_like(other[0].weight))
    with precision.autocast():
        assert float(paddle.abs(other[0](images()) - other[0].bias.reshape([1, -1, 1, 1])).max()) == 0
        assert float(paddle.abs(model[0](images())).max()) > 0.1


def test_on_a_gpu_weights_stay_fp32_and_the_product_alone_is_cast(recipe, monkeypatch):
    asked, decorated = [], []

    @contextmanager
    def auto_cast(**settings):
        asked.append(settings)
        yield

    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    monkeypatch.setattr(paddle.amp, "decorate", lambda **settings: decorated.append(settings))
    precision = MixedPrecision("O2", "bf16", "gpu")
    model = make_model(recipe)
    assert precision.prepare(model, "optimizer") == (model, "optimizer")
    model.train()
    model[0](images())
    assert not decorated
    assert [settings.get("enable", True) for settings in asked] == [False, True]
    asked.clear()
    with precision.for_evaluation():
        model.eval()
        model[0](images())
    assert asked == [{"enable": False}]


GRADIENTS = {
    "grad_input": {"grad_output": {"grid": "int4", "rounding": "stochastic"}, "weight": {"grid": "int4"}},
    "grad_weight": {"grad_output": {"grid": "int4", "rounding": "stochastic"}, "input": {"grid": "int4"}},
}
LOW_PRECISION = {"rules": [{"forward": {"input": {"grid": "int4"}, "weight": {"grid": "int4"}}, **GRADIENTS}]}
LAYERS = {
    "convolution": lambda: nn.Conv2D(3, 8, 3),
    "transposed": lambda: nn.Conv2DTranspose(3, 8, 3),
    "by Paddle": lambda: nn.Conv2DTranspose(6, 8, 3, data_format="NHWC"),
    "linear": lambda: nn.Linear(6, 8),
}


@pytest.mark.parametrize("executor", ["integer", "simulate"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_layer_trained_in_low_precision_computes_as_without(level, kind, executor):
    """Output and both gradients to the last bit, while a layer left in full is on the narrow grid."""
    results, wide = {}, {}
    for name, precision in (
        ("fp32", MixedPrecision("O0", "bf16", "cpu")),
        ("amp", MixedPrecision(level, "bf16", "cpu")),
    ):
        paddle.seed(5)
        model = nn.Sequential(LAYERS[kind]())
        prepare(model, make_recipe(LOW_PRECISION))
        model[0].backward_quantizers.executor = executor
        plain = nn.Linear(6, 5)
        precision.prepare(model, None)
        x = images()
        x.stop_gradient = False
        with precision.autocast():
            y = model(x)
            wide[name] = plain(x).detach()
        dy = paddle.to_tensor(np.random.default_rng(1).standard_normal(y.shape, dtype=np.float32))
        paddle.autograd.backward([y], [dy])
        results[name] = [y.numpy(), x.grad.numpy(), model[0].weight.grad.numpy(), model[0].bias.grad.numpy()]
    for expected, found in zip(results["fp32"], results["amp"], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(wide["fp32"].numpy(), wide["amp"].numpy())
