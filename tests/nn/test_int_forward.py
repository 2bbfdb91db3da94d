"""Quantization-aware training with forward in integers: as in floats, but for the rounding of sums."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.deploy.onnx.fold import deployed_layers
from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.nn import calibrate, frozen, prepare, quantize_layer
from lowbit.nn import int_forward as module
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.int_forward import FROZEN
from lowbit.nn.int_matmul import in_integers
from lowbit.nn.quantizer import Quantizer
from lowbit.recipe import Forward, Plan, TensorSpec, make_recipe
from tests.support.quant_layers import CONVS, LAYERS, PLAN, TRANSPOSED, inputs, seen
from tests.support.tiny_net import TinyNet

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C++ kernels")
PLANS = {
    "W8A8": {"grid": "uint8"},
    "W8A8 per sample": {"grid": "int8", "granularity": "N"},
    "W8A8 PACT": {"grid": "uint8", "clip": "pact", "scaling": "moving_average"},
    "W4A4 LSQ": {"grid": "int4", "scaling": "learned"},
    "W2A2 LSQ": {"grid": "int2", "scaling": "learned"},
    "W4A4 LSQ+": {"grid": "int4", "scaling": "learned", "sign": "asymmetric"},
    "W7A7 LSQ+": {"grid": "int7", "scaling": "learned", "sign": "asymmetric"},
}


@pytest.fixture(autouse=True)
def _same_weights_every_time():
    paddle.seed(0)


def _plan(name):
    spec = PLANS[name]
    bits = spec["grid"].removeprefix("u")
    weight = TensorSpec(grid=bits, granularity="N", scaling="learned" if "LSQ" in name else "dynamic")
    return Plan(forward=Forward(input=TensorSpec(**spec), weight=weight))


def _input(shape, name):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return paddle.to_tensor(np.abs(x) if "uint" in PLANS[name]["grid"] else x, stop_gradient=False)


def _run(layer, executor, x, monkeypatch):
    """Y, its gradients, and how often a product was one of integers."""
    layer, x = copy.deepcopy(layer), paddle.to_tensor(x.numpy(), stop_gradient=False)
    layer.executor, calls = executor, []

    def counted(*arguments):
        result = in_integers(*arguments)
        calls.append(result is not None)
        return result

    monkeypatch.setattr(module, "in_integers", counted)
    y = layer(x)
    rng = np.random.default_rng(1)
    y.backward(paddle.to_tensor(rng.standard_normal(y.shape).astype(np.float32)))
    gradients = {name: p.grad.numpy() for name, p in layer.named_parameters() if p.grad is not None}
    return {"y": y.numpy(), "x": x.grad.numpy(), **gradients}, calls


def _same(layer, x, monkeypatch):
    floats, none = _run(layer, "simulate", x, monkeypatch)
    integers, calls = _run(layer, "auto", x, monkeypatch)
    assert calls == [True] and not none
    assert floats.keys() == integers.keys()
    for key, value in floats.items():
        # A step's gradient is a sum in which most cancels: what is left tells nothing about its error.
        most = 1.0 if "quantizer" in key else max(float(np.abs(value).max()), 1e-6)
        np.testing.assert_allclose(integers[key], value, rtol=1e-5, atol=2e-5 * most, err_msg=key)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("options", CONVS)
def test_conv(options, name, monkeypatch):
    layer = quantize_layer(nn.Conv2D(4, 8, **options), _plan(name))
    _same(layer, _input([2, 9, 9, 4] if "data_format" in options else [2, 4, 9, 9], name), monkeypatch)


@pytest.mark.parametrize("options", [o for o in TRANSPOSED if o.get("padding") != "SAME"])
def test_transposed_conv(options, monkeypatch):
    layer = quantize_layer(nn.Conv2DTranspose(4, 6, **options), _plan("W4A4 LSQ"))
    _same(layer, _input([2, 5, 5, 4] if "data_format" in options else [2, 4, 5, 5], "W4A4 LSQ"), monkeypatch)


@pytest.mark.parametrize("shape", [[3, 4], [2, 3, 4]])
def test_linear(shape, monkeypatch):
    _same(quantize_layer(nn.Linear(4, 5), _plan("W8A8")), _input(shape, "W8A8"), monkeypatch)


def test_a_zero_point_of_8_bits_is_for_floats(monkeypatch):
    """Its integers, such as -40 to 215, do not fit a byte."""
    spec = TensorSpec(grid="int8", scaling="learned", sign="asymmetric")
    plan = Plan(forward=Forward(input=spec, weight=TensorSpec(grid="int8", granularity="N")))
    layer = quantize_layer(nn.Conv2D(4, 4, 3), plan)
    x = paddle.randn([2, 4, 6, 6])
    layer(x)
    layer.input_quantizer.offset.value.set_value(paddle.to_tensor([-0.5]))
    integers, calls = _run(layer, "auto", x, monkeypatch)
    floats, _ = _run(layer, "simulate", x, monkeypatch)
    assert calls == [False] and layer.input_quantizer.grid().zero_point > 0
    for key, value in floats.items():
        np.testing.assert_allclose(integers[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


def test_sums_are_exact():
    """Values of one size, which floats add up with an error and integers without."""
    spec = TensorSpec(grid="int8")
    layer = quantize_layer(
        nn.Linear(4096, 1, bias_attr=False), Plan(forward=Forward(input=spec, weight=spec))
    )
    layer.weight.set_value(paddle.full([4096, 1], 0.1))
    x = paddle.full([1, 4096], 0.3)
    scales = [
        layer.input_quantizer.values_and_scale(x)[1],
        layer.weight_quantizer.values_and_scale(layer.weight)[1],
    ]
    exact = 4096 * 127 * 127 * np.float64((scales[0] * scales[1]).item())
    np.testing.assert_allclose(layer(x).item(), exact, rtol=6e-8)


def test_a_nan_stays_with_its_sample(monkeypatch):
    layer = quantize_layer(nn.Linear(4, 3), _plan("W8A8 PACT"))
    layer(_input([5, 4], "W8A8 PACT"))
    layer.input_quantizer.eval()  # keeps the range that it has
    x = _input([5, 4], "W8A8 PACT").numpy()
    x[2, 1] = np.nan
    y = layer(paddle.to_tensor(x)).numpy()
    assert np.isnan(y[2]).all() and np.isfinite(np.delete(y, 2, 0)).all()


def test_scales_that_stay_in_the_sum_and_quantizers_of_ones_own_are_for_floats(monkeypatch):
    per_channel = Plan(
        forward=Forward(input=TensorSpec(grid="int8", granularity="C"), weight=TensorSpec(grid="int8"))
    )
    layer = quantize_layer(nn.Conv2D(4, 8, 3), per_channel)
    _, calls = _run(layer, "auto", _input([2, 4, 9, 9], "W4A4 LSQ"), monkeypatch)
    assert calls == []
    layer = quantize_layer(nn.Conv2D(4, 8, 3), _plan("W8A8"))
    layer.weight_quantizer = nn.Identity()
    _, calls = _run(layer, "auto", _input([2, 4, 9, 9], "W8A8"), monkeypatch)
    assert calls == []


@pytest.mark.parametrize("operand", ["input", "weight"])
@pytest.mark.parametrize("replaced", ["class", "method", "hook"])
def test_classes_and_methods_of_ones_own_are_called(operand, replaced, monkeypatch):
    class Halved(Quantizer):
        def forward(self, x):
            return super().forward(x) / 2

    layer, x = quantize_layer(nn.Linear(4, 3, bias_attr=False), _plan("W8A8")), _input([2, 4], "W8A8")
    layer(x)
    layer.input_quantizer.eval()  # keeps the range that it has
    expected, quantizer = layer(x), getattr(layer, f"{operand}_quantizer")
    if replaced == "class":
        monkeypatch.setattr(quantizer, "__class__", Halved)
    elif replaced == "hook":
        quantizer.register_forward_post_hook(lambda _quantizer, _given, y: y / 2)
    else:
        plain = quantizer.forward
        monkeypatch.setattr(quantizer, "forward", lambda x: plain(x) / 2)
    with pytest.raises(LowbitError, match="your own class, hook or method"):
        deployed_layers(nn.Sequential(layer))
    for training in (True, False):
        layer.train() if training else layer.eval()
        layer.input_quantizer.eval()
        with paddle.no_grad():
            np.testing.assert_allclose(layer(x).numpy(), expected.numpy() / 2, rtol=1e-5)


def test_what_is_kept_for_backward_is_small():
    layer = quantize_layer(nn.Conv2D(4, 8, 3), _plan("W4A4 LSQ"))
    kept = []
    original = module.SavedQTensor

    class Counted(original):
        def __init__(self, operand):
            super().__init__(operand)
            kept.append(self.bytes)

    module.SavedQTensor = Counted
    try:
        layer(_input([2, 4, 9, 9], "W4A4 LSQ"))
    finally:
        module.SavedQTensor = original
    assert kept == [2 * 4 * 9 * 9 // 2, 8 * 4 * 3 * 3 // 2]


def test_gradients_of_gradients_are_for_floats():
    def penalty(executor):
        layer = quantize_layer(nn.Linear(4, 3), _plan("W8A8"))
        layer.executor = executor
        x = _input([2, 4], "W8A8")
        (dx,) = paddle.grad(layer(x).square().sum(), x, create_graph=True)
        dx.square().sum().backward()
        return layer.weight.grad

    assert float(penalty("simulate").abs().sum()) > 0
    with pytest.raises(Exception, match="simulate"):  # Paddle may wrap the error
        penalty("auto")


def test_hooks_of_quantizers_are_called():
    layer, seen = quantize_layer(nn.Linear(4, 3), _plan("W8A8")), []
    layer.input_quantizer.register_forward_post_hook(lambda _layer, _x, y: seen.append(y))
    layer(_input([2, 4], "W8A8"))
    assert len(seen) == 1


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


@pytest.mark.parametrize("kind", ["conv", "depthwise", "linear"])
@pytest.mark.parametrize("bad", [None, "input", "weight"])
@pytest.mark.parametrize(
    "weight",
    [{"grid": "int8-narrow"}, {"grid": "int8"}, {"grid": "int4-narrow", "observer": "clip_ratio(0.5)"}],
)
@pytest.mark.parametrize(
    "words",
    [
        {"grid": "uint8", "clip": "pact", "scaling": "moving_average"},
        {"grid": "int8", "sign": "auto", "clip": "pact", "scaling": "moving_average"},
        {"grid": "int4", "scaling": "moving_average"},
        {"grid": "int8", "scaling": "fixed"},
    ],
)
def test_one_node_gives_the_bits_of_three(kind, weight, bad, words, monkeypatch):
    plan = Plan(forward=Forward(input=TensorSpec(**words), weight=TensorSpec(**weight, granularity="N")))
    layer, shape = {
        "conv": (lambda: nn.Conv2D(6, 4, 3, padding=1), [2, 6, 5, 7]),
        "depthwise": (lambda: nn.Conv2D(6, 6, 3, groups=6, stride=2), [2, 6, 9, 7]),
        "linear": (lambda: nn.Linear(6, 4), [2, 3, 6]),
    }[kind]
    first = quantize_layer(layer(), plan)
    calibrate(first, [_input(shape, "W8A8 per sample")])
    second = copy.deepcopy(first)
    nodes, results = [], []
    for model, in_one in ((first, module._in_one_node), (second, lambda *_: None)):

        def noted(*arguments, in_one=in_one):
            nodes.append(in_one(*arguments))
            return nodes[-1]

        monkeypatch.setattr(module, "_in_one_node", noted)
        model.train()
        for step in range(3):
            x = _input(shape, "W8A8 per sample") * (1.5 + step)
            if bad == "input" and step == 1:
                x[1, 2] = float("nan")
            if bad == "weight" and step == 1:
                broken = model.weight.numpy().copy()
                broken[1, 0] = np.nan
                model.weight.set_value(broken)
            x = x.detach()
            x.stop_gradient = False
            y = model(x)
            y.backward(paddle.to_tensor(np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)))
        gradients = [x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]
        results.append([t.numpy() for t in (y, *gradients, *model.state_dict().values())])
    assert [node is not None for node in nodes] == [True] * 3 + [False] * 3
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
