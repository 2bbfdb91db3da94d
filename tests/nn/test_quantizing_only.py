"""Some layers quantized, the others in full."""

from __future__ import annotations

import paddle
import pytest

from lowbit.errors import LowbitError
from lowbit.nn import prepare
from lowbit.nn.convert import quantized_layers, quantizing_only
from lowbit.nn.inspect import quantization_mode as as_tested  # a test by its own name
from lowbit.recipe import Recipe
from tests.support.tiny_net import build_tiny


def _prepared():
    spec = {"grid": "int2"}
    model = prepare(build_tiny(), Recipe(rules=[{"forward": {"input": spec, "weight": spec}}]))
    model.eval()
    return model


def test_all_and_none_are_the_two_ways_to_test_a_model():
    model, images = _prepared(), paddle.randn([2, 3, 32, 32])
    for names, way in (((), "full"), (list(quantized_layers(model)), "quantized")):
        with as_tested(model, way):
            expected = model(images).numpy()
        with quantizing_only(model, names):
            assert (model(images).numpy() == expected).all()


def test_one_layer_alone_computes_as_if_the_others_had_never_been_quantized():
    model, plain, images = _prepared(), build_tiny(), paddle.randn([2, 3, 32, 32])
    plain.set_state_dict(model.state_dict())
    rule = {"match": {"name": "head"}, "forward": {"input": {"grid": "int2"}, "weight": {"grid": "int2"}}}
    prepare(plain, Recipe(rules=[rule]))
    plain.eval()
    with quantizing_only(model, {"head"}), paddle.no_grad():
        assert (model(images).numpy() == plain(images).numpy()).all()


def test_the_model_comes_back_and_names_are_checked():
    model, images = _prepared(), paddle.randn([2, 3, 32, 32])
    with paddle.no_grad():
        before = model(images).numpy()
        with quantizing_only(model, {"conv"}):
            assert (model(images).numpy() != before).any()
        assert (model(images).numpy() == before).all()
    with pytest.raises(LowbitError, match="conv"), quantizing_only(model, {"cnov"}):
        pass
