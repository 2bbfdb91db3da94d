"""A frozen model gives the same bits, exports integers, and comes back as it was."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.nn import calibrate, frozen, prepare
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.int_forward import FROZEN
from lowbit.recipe import make_recipe
from tests.support.quant_layers import LAYERS, PLAN, inputs, seen
from tests.support.tiny_net import TinyNet


@pytest.mark.parametrize("plan", PLAN)
@pytest.mark.parametrize("kind", LAYERS)
def test_the_same_bits(kind: str, plan: str) -> None:
    layer, x = seen(kind, plan), inputs(kind)
    with eval_mode(layer):
        expected = layer(x).numpy()
    with frozen(layer):
        assert hasattr(layer, FROZEN) == (plan != "per-sample")  # whose scales are chosen in every call
        found = layer(x).numpy()
    assert (found == expected).all()
    assert not hasattr(layer, FROZEN) and layer.training


def _model(fold: str) -> nn.Layer:
    paddle.seed(0)
    recipe = make_recipe(
        {
            "rules": [
                {
                    "forward": {
                        "input": {"grid": "int8", "scaling": "moving_average", "clip": "pact"},
                        "weight": {"grid": "int4", "granularity": "N"},
                    }
                }
            ],
            "batch_norm": {"fold": fold},
        }
    )
    images = paddle.randn([2, 3, 8, 8])
    model = prepare(TinyNet(), recipe, images)
    calibrate(model, [images])
    return model


@pytest.mark.parametrize("fold", ["export", "training"])
def test_an_exported_program_carries_the_integers(fold: str, tmp_path) -> None:
    model, x = _model(fold), paddle.randn([2, 3, 8, 8])
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    with eval_mode(model):
        expected = model(x).numpy()
    spec = paddle.static.InputSpec([None, 3, 8, 8], "float32")
    sizes = []
    for name in ("frozen", "as_it_is"):
        if name == "frozen":
            with frozen(model):
                paddle.jit.save(model, str(tmp_path / name), [spec])
        else:
            with eval_mode(model):
                paddle.jit.save(model, str(tmp_path / name), [spec])
        served = paddle.jit.load(str(tmp_path / name))(x).numpy()
        np.testing.assert_allclose(served, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
        sizes.append((tmp_path / f"{name}.pdiparams").stat().st_size)
    assert sizes[0] < sizes[1]
    after = {name: value.numpy() for name, value in model.state_dict().items()}
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


def test_an_error_inside_leaves_the_model_as_it_was() -> None:
    model = _model("export")
    model.train()
    with pytest.raises(RuntimeError, match="stop"), frozen(model):
        raise RuntimeError("stop")
    assert not any(hasattr(layer, FROZEN) for layer in model.sublayers(include_self=True))
    assert model.training
