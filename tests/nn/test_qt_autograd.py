"""All three products against the NumPy twin: every granularity, geometry and grid."""

from __future__ import annotations

import itertools

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from lowbit.accel.fused_norm import SavedMultiples
from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.nn import qt_autograd
from lowbit.nn.qt_autograd import Operands, QTProducts, RoundingRNG, in_full_gradients, seed_rounding
from lowbit.nn.quant_layers import quantize_layer
from lowbit.recipe import TensorSpec
from lowbit.recipe.plan import Forward, GradInput, GradWeight, Plan
from tests.support import qt_autograd_twin as twin
from tests.support.gemm_cases import VARIANTS, using

GRANULARITIES = ["per-tensor", *("N", "C", "H", "W", "NC", "NH", "NHW", "CHW", "NCHW", "HW")]


def _spec(grid, granularity, **more):
    return TensorSpec(grid=grid, granularity=granularity, **more)


@st.composite
def _cases(draw):
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    return {
        "groups": groups,
        "inputs": groups * draw(st.integers(1, 2)),
        "outputs": groups * draw(st.integers(1, 2)),
        "kernel": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "stride": draw(st.integers(1, 2)),
        "dilation": draw(st.integers(1, 2)),
        "padding": draw(st.tuples(*[st.integers(0, 2)] * 4)),
        "size": (draw(st.integers(1, 3)), draw(st.integers(5, 7)), draw(st.integers(5, 7))),
        "granularities": draw(st.tuples(*[st.sampled_from(GRANULARITIES)] * 6)),
        "bits": draw(st.sampled_from([2, 4, 8])),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@settings(max_examples=60)
@given(_cases(), st.sampled_from(["integer", "simulate"]))
def test_convolution(case, executor):
    rng = np.random.default_rng(case["seed"])
    batch, height, width = case["size"]
    padding, groups, bits = case["padding"], case["groups"], case["bits"]
    geometry = (case["stride"], padding, case["dilation"], groups)
    layer = nn.Conv2D(
        case["inputs"], case["outputs"], case["kernel"], stride=case["stride"], padding=list(padding),
        dilation=case["dilation"], groups=groups, bias_attr=False,
    )  # fmt: skip
    weight = rng.standard_normal(layer.weight.shape).astype(np.float32)
    layer.weight.set_value(weight)
    grid, names = f"int{bits}", case["granularities"]
    specs = [_spec(grid, name) for name in names]
    plan = Plan(
        forward=Forward(input=specs[0], weight=specs[1]),
        grad_input=GradInput(grad_output=specs[2], weight=specs[3]),
        grad_weight=GradWeight(grad_output=specs[4], input=specs[5]),
    )
    x = rng.standard_normal([batch, case["inputs"], height, width]).astype(np.float32)
    tensor = paddle.to_tensor(x, stop_gradient=False)
    quantize_layer(layer, plan)
    layer.backward_quantizers.executor = executor
    y = layer(tensor)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    paddle.autograd.backward([y], [paddle.to_tensor(dy)])

    ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    letters = [name.replace("per-tensor", "") for name in names]

    def on_grid(value, number):
        return twin.quantized(value, letters[number], "NCHW", *ends)

    expected = twin.forward(on_grid(x, 0), on_grid(weight, 1), *geometry)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)
    expected = twin.grad_input(on_grid(dy, 2), on_grid(weight, 3), x.shape, *geometry)
    np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-4, atol=1e-4)
    expected = twin.grad_weight(on_grid(dy, 4), on_grid(x, 5), weight.shape, *geometry)
    np.testing.assert_allclose(layer.weight.grad.numpy(), expected, rtol=1e-4, atol=2e-4)


@settings(max_examples=30)
@given(
    st.tuples(*[st.sampled_from(GRANULARITIES)] * 6),
    st.sampled_from([(3, 4), (2, 3, 4), (2, 3, 3, 4), (2, 2, 3, 2, 2, 4)]),
    st.integers(0, 99),
)
def test_linear(names, shape, seed):
    rng = np.random.default_rng(seed)
    specs = [_spec("int4", name) for name in names]
    plan = Plan(
        forward=Forward(input=specs[0], weight=specs[1]),
        grad_input=GradInput(grad_output=specs[2], weight=specs[3]),
        grad_weight=GradWeight(grad_output=specs[4], input=specs[5]),
    )
    layer = nn.Linear(4, 5)
    weight, bias = rng.standard_normal([4, 5]).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    layer.weight.set_value(weight)
    layer.bias.set_value(bias)
    x = rng.standard_normal(shape).astype(np.float32)
    tensor = paddle.to_tensor(x, stop_gradient=False)
    y = quantize_layer(layer, plan)(tensor)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    paddle.autograd.backward([y], [paddle.to_tensor(dy)])

    layout = {2: "NC", 3: "NHC", 4: "NHWC", 6: "NHHHWC"}[len(shape)]

    def on_grid(value, number, layout=layout):
        return twin.quantized(value, names[number].replace("per-tensor", ""), layout, -8, 7)

    expected = on_grid(x, 0) @ on_grid(weight, 1, "CN") + bias
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)
    expected = on_grid(dy, 2) @ on_grid(weight, 3, "CN").T
    np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-4, atol=1e-4)
    expected = on_grid(x, 5).reshape(-1, 4).T @ on_grid(dy, 4).reshape(-1, 5)
    np.testing.assert_allclose(layer.weight.grad.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer.bias.grad.numpy(), dy.reshape(-1, 5).sum(0), rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: nn.Conv2D(4, 6, 3, padding=1, data_format="NHWC"),
                                  lambda: nn.Conv2DTranspose(4, 6, 3, stride=2, groups=2),
                                  lambda: nn.Conv2D(4, 6, 3, padding=1, padding_mode="reflect"),
                                  lambda: nn.Conv2D(4, 6, 3, padding="SAME", stride=2)])  # fmt: skip
def test_layers_of_other_kinds_have_the_gradients_of_paddle(make):
    """On a grid so fine that what it changes is below the tolerance."""
    paddle.seed(3)
    plain, shape = make(), [2, 4, 7, 7]
    if plain._data_format == "NHWC":
        shape = [2, 7, 7, 4]
    low = make()
    low.set_state_dict(plain.state_dict())
    fine = _spec("int8", "NCHW")
    plan = Plan(
        forward=Forward(input=fine, weight=fine),
        grad_input=GradInput(grad_output=fine, weight=fine),
        grad_weight=GradWeight(grad_output=fine, input=fine),
    )
    quantize_layer(low, plan)
    results = []
    x0 = paddle.randn(shape)
    for layer in (plain, low):
        x = x0.clone().detach()
        x.stop_gradient = False
        layer(x).square().sum().backward()
        results.append([x.grad.numpy(), layer.weight.grad.numpy(), layer.bias.grad.numpy()])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


W4A4G4 = Plan(
    forward=Forward(input=_spec("int4", "N"), weight=_spec("int4", "N")),
    grad_input=GradInput(grad_output=_spec("int4", "NHW", rounding="stochastic")),
    grad_weight=GradWeight(grad_output=_spec("int4", "NC", rounding="stochastic"), input=_spec("int4", "N")),
)  # fmt: skip


def _gradients(layer, x0, dy):
    x = x0.clone().detach()
    x.stop_gradient = False
    layer.clear_gradients()
    paddle.autograd.backward([layer(x)], [dy])
    return x.grad.numpy(), layer.weight.grad.numpy()


@pytest.mark.parametrize("more", [{}, {"samples": 2}, {"rotation": "hadamard(4)"}])
def test_stochastic_gradients_are_unbiased(more):
    paddle.seed(1)
    layer = nn.Conv2D(4, 8, 3, padding=1, bias_attr=False)
    gradient = {"granularity": "per-tensor", "rounding": "stochastic", **more}
    plan = Plan(
        forward=W4A4G4.forward,
        grad_input=GradInput(grad_output=TensorSpec(grid="int4", **gradient)),
        grad_weight=GradWeight(grad_output=TensorSpec(grid="int4", **gradient), input=_spec("int4", "N")),
    )
    quantize_layer(layer, plan)
    x, dy = paddle.randn([2, 4, 5, 5]), paddle.randn([2, 8, 5, 5])
    draws = [_gradients(layer, x, dy) for _ in range(400)]
    in_full_gradients(layer, True)
    for number, expected in enumerate(_gradients(layer, x, dy)):
        sample = np.stack([draw[number] for draw in draws])
        error = sample.std(axis=0) / np.sqrt(len(sample))
        off = np.abs(sample.mean(axis=0) - expected)
        assert (off < 5 * error + 1e-4).all()
        assert error.max() > 0.005 * np.abs(expected).mean()  # there is something to be unbiased about


def test_two_samples_halve_the_variance():
    spread = []
    for samples in (1, 2):
        paddle.seed(1)
        layer = nn.Linear(16, 16)
        gradient = TensorSpec(grid="int4", rounding="stochastic", samples=samples)
        quantize_layer(layer, Plan(grad_input=GradInput(grad_output=gradient)))
        x, dy = paddle.randn([8, 16]), paddle.randn([8, 16])
        spread.append(np.stack([_gradients(layer, x, dy)[0] for _ in range(200)]).var(axis=0).mean())
    assert spread[1] == pytest.approx(spread[0] / 2, rel=0.1)


def test_draws_go_on_where_a_saved_layer_stood():
    x, dy = paddle.randn([2, 4, 5, 5]), paddle.randn([2, 8, 5, 5])

    def make():
        paddle.seed(1)
        layer = quantize_layer(nn.Conv2D(4, 8, 3, padding=1), W4A4G4, number=3)
        seed_rounding(layer, 17)
        return layer

    layer = make()
    first, second = _gradients(layer, x, dy), _gradients(layer, x, dy)
    assert any((a != b).any() for a, b in zip(first, second, strict=True))
    again = make()
    saved = again.state_dict()
    for a, b in zip(first, _gradients(again, x, dy), strict=True):
        np.testing.assert_array_equal(a, b)
    resumed = make()
    resumed.set_state_dict(again.state_dict())
    assert saved
    for a, b in zip(second, _gradients(resumed, x, dy), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_input_is_kept_as_bytes():
    layer = quantize_layer(nn.Linear(4, 4), W4A4G4)
    x = paddle.randn([2, 4])
    x.stop_gradient = False
    y = layer(x)
    x.set_value(paddle.zeros([2, 4]))  # what is kept are its integers, which this does not reach
    y.sum().backward()
    assert np.abs(layer.weight.grad.numpy()).max() > 0


def test_a_weight_that_changed_in_between_is_an_error():
    layer = quantize_layer(nn.Linear(4, 4), W4A4G4)
    x = paddle.randn([2, 4])
    x.stop_gradient = False
    y = layer(x)
    with paddle.no_grad():
        layer.weight.scale_(2.0)
    with pytest.raises((LowbitError, OSError), match="changed in place"):
        y.sum().backward()


def test_an_all_zero_gradient_stays_zero():
    layer = quantize_layer(nn.Conv2D(2, 3, 3), W4A4G4)
    dx, dweight = _gradients(layer, paddle.randn([1, 2, 5, 5]), paddle.zeros([1, 3, 3, 3]))
    assert not dx.any() and not dweight.any()


def test_no_gradients_of_gradients():
    spec = _spec("int4", "per-tensor")
    backward = {"grad_input": GradInput(weight=spec), "grad_weight": GradWeight(input=spec)}
    layer = quantize_layer(nn.Linear(4, 3), Plan(forward=Forward(input=spec, weight=spec), **backward))
    x = paddle.ones([2, 4])
    x.stop_gradient = False
    with pytest.raises(Exception, match="second-order gradients"):  # Paddle may wrap the error
        paddle.grad(layer(x).square().sum(), x, create_graph=True)


GRADIENT, WEIGHT = "grad_weight.grad_output", "grad_input.weight"


def test_no_two_draws_are_keyed_alike():
    """Layers, operands, samples and steps each have numbers of their own."""
    keys = set()
    operands = [
        f"{product}.{operand}"
        for product, names in (
            ("forward", ("input", "weight")),
            ("grad_input", ("grad_output", "weight")),
            ("grad_weight", ("grad_output", "input")),
        )
        for operand in names
    ]
    for layer, steps in itertools.product(range(3), range(3)):
        draws = RoundingRNG(layer)
        for _ in range(steps):
            draws.next_step()
        for operand, sample in itertools.product(operands, range(2)):
            rounding = draws.rounding(operand, sample, size=10)
            keys.add((rounding.seed, rounding.step, rounding.layer, rounding.first))
    assert len(keys) == 3 * 3 * len(operands) * 2


def test_the_count_is_in_the_state():
    draws, other = RoundingRNG(0), RoundingRNG(0)
    draws.next_step()
    other.set_state_dict(draws.state_dict())
    assert other.rounding(GRADIENT, 0, size=4) == draws.rounding(GRADIENT, 0, size=4)
    assert other.rounding(GRADIENT, 0, size=4).step == 1


def test_the_seed_reaches_all_layers():
    model = nn.Sequential(RoundingRNG(0), nn.Sequential(RoundingRNG(1)))
    seed_rounding(model, 7)
    assert [model[0].seed, model[1][0].seed] == [7, 7]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_draw_for_their_parts_of_a_batch_and_alike_for_weights(rank, monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    draws = RoundingRNG(0)
    assert draws.rounding(GRADIENT, 0, size=100).first == 100 * rank
    assert draws.rounding(WEIGHT, 0, size=100).first == 0
    assert draws.rounding("forward.weight", 0, size=100).first == 0


# Operands that are made in the same call as their product, against those that are made one by one.


def _all_products(layer, x, dy, learning, *, one_by_one):
    """Y, its scale, X as saved, dX and dW; and the functions that made operands on the way."""
    layer.backward_quantizers.draws.step.set_value(paddle.zeros([1], "int64"))
    used = []

    def noting(function):
        def noted(*arguments):
            found = function(*arguments)
            used.extend([function.__name__] * (found is not None))
            return found

        return noted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("forward_of_unrounded", "gradient_of_unrounded"):
            patch.setattr(qt_autograd, name, noting(getattr(qt_autograd, name)))
        if one_by_one:
            patch.setattr(Operands, "unrounded", lambda *_: None)
        products = QTProducts(layer.linear_op(x), Operands(layer), learning)
        y, whole = products.forward(x, layer.weight)
        saved = products._x.operand() if learning[1] else None
        dx, dweight = products.backward(dy)
    y = y.values() if isinstance(y, SavedMultiples) else y
    found = [y, None if whole is None else whole.scale, dx, dweight]
    found += [] if saved is None else [saved.data, saved.scale]
    return [None if one is None else one.numpy() for one in found], used


def _stochastic_plan(bits, grid, letters, *, observer="minmax", samples=1):
    forward = {"grid": f"int{bits}", "observer": observer}
    gradient = {"grid": grid, "rounding": "stochastic", "samples": samples}
    return Plan(
        forward=Forward(
            input=TensorSpec(**forward, sign="auto", granularity=letters[0]),
            weight=TensorSpec(**forward, granularity=letters[1]),
        ),
        grad_input=GradInput(
            grad_output=TensorSpec(**gradient, granularity=letters[2]),
            weight=TensorSpec(**forward, granularity=letters[3]),
        ),
        grad_weight=GradWeight(
            grad_output=TensorSpec(**gradient, granularity=letters[4]),
            input=TensorSpec(**forward, sign="auto", granularity=letters[5]),
        ),
    )


needs_kernels = pytest.mark.skipif(kernels() is None, reason="no kernels")
_FAST = ("per-tensor", "N", "N", "C", "C", "per-tensor")


@needs_kernels
@settings(max_examples=80)
@given(
    letters=st.one_of(st.just(_FAST), st.tuples(*[st.sampled_from(GRANULARITIES)] * 6)),
    bits=st.sampled_from([4, 8]),
    grid=st.sampled_from(["log4", "int4", "int8"]),
    samples=st.sampled_from([1, 2]),
    observer=st.sampled_from(["minmax", "clip_ratio", "mse", "percentile"]),
    learning=st.sampled_from([(True, True), (True, False), (False, True)]),
    special=st.sampled_from([None, None, "negative", "nan", "zeros"]),
    shape=st.sampled_from([(16, 8, 1), (3, 7, 1), (16, 8, 2)]),  # channels, side, stride
    variant=st.sampled_from(VARIANTS),
)
def test_operands_made_on_the_way(letters, bits, grid, samples, observer, learning, special, shape, variant):
    channels, side, stride = shape
    plan = _stochastic_plan(bits, grid, letters, observer=observer, samples=samples)
    paddle.seed(1)
    layer = nn.Conv2D(channels, channels, 3, stride=stride, padding=1, bias_attr=False)
    quantize_layer(layer, plan)
    x = paddle.randn([2, channels, side, side])
    x = x if special == "negative" else paddle.nn.functional.relu(x)
    dy = paddle.randn([2, channels, -(-side // stride), -(-side // stride)])
    if special in ("nan", "zeros"):
        dy[1, 2, 1] = float("nan") if special == "nan" else 0.0
        x[0, 1, 2] = float("nan") if special == "nan" else 0.0
    with using(variant):
        made, _ = _all_products(layer, x, dy, learning, one_by_one=False)
        expected, used = _all_products(layer, x, dy, learning, one_by_one=True)
    assert not used
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@needs_kernels
@pytest.mark.parametrize(("bits", "grid"), [(4, "log4"), (8, "int8")])
@pytest.mark.parametrize("variant", ["avx2", "baseline"])
def test_fast_recipes_make_operands_on_the_way(bits, grid, variant):
    if variant not in VARIANTS:
        pytest.skip(f"no {variant} here")
    layer = quantize_layer(
        nn.Conv2D(16, 16, 3, padding=1, bias_attr=False), _stochastic_plan(bits, grid, _FAST)
    )
    x, dy = paddle.randn([2, 16, 8, 8]), paddle.randn([2, 16, 8, 8])
    with using(variant):
        _, used = _all_products(layer, x, dy, (True, True), one_by_one=False)
    assert used == ["forward_of_unrounded", "gradient_of_unrounded", "gradient_of_unrounded"]


@needs_kernels
def test_who_looks_at_operands_sees_all_of_them():
    layer = quantize_layer(
        nn.Conv2D(16, 16, 3, padding=1, bias_attr=False), _stochastic_plan(4, "log4", _FAST)
    )
    seen = []
    layer.backward_quantizers.look = lambda operand, _x, _made: seen.append(operand)
    x, dy = paddle.randn([2, 16, 8, 8]), paddle.randn([2, 16, 8, 8])
    _, used = _all_products(layer, x, dy, (True, True), one_by_one=False)
    assert not used and {"forward.input", "grad_weight.grad_output", "grad_input.grad_output"} <= {*seen}
