"""A batch norm with a residual sum and a ReLU in one pass gives what Paddle's three operators give."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import Tensor, nn
from paddle.base import core
from paddle.nn import functional as F

from lowbit.accel import norm_ops as module
from lowbit.accel.fused_norm import BatchNormNode, IntegerScale, NormPass, Statistics, takes
from lowbit.accel.norm_ops import fast_norm_ops, fused_batch_norm
from lowbit.errors import LowbitError
from lowbit.kernels import kernels, why_missing
from lowbit.kernels.norm import Activation
from lowbit.nn.convert import prepare
from lowbit.nn.qt_autograd import seed_rounding
from lowbit.recipe.load import make_recipe
from tests.support.accel_pairs import both_ways, tensor

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


def _one_pass(
    norm: nn.BatchNorm2D,
    x: Tensor,
    other: Tensor | None,
    *,
    rectified: bool,
    scale: Tensor | None = None,
    has_high_bits: bool = False,
) -> Tensor:
    batch = [paddle.empty([x.shape[1]]) for _ in range(2)]
    statistics = Statistics(norm._mean, norm._variance, *batch, norm._epsilon, norm._momentum)
    whole = None if scale is None else IntegerScale(scale.reshape([*scale.shape, 1, 1]), has_high_bits)
    made = NormPass(statistics, Activation(rectified), whole=whole)
    return BatchNormNode.apply(x, norm.weight, norm.bias, other, made)


def _three_passes(norm: nn.BatchNorm2D, x: Tensor, other: Tensor | None, *, rectified: bool) -> Tensor:
    y = norm(x) if other is None else norm(x) + other
    return F.relu(y) if rectified else y


def _norm(channels: int, *, far: float = 0.0) -> nn.BatchNorm2D:
    norm, random = nn.BatchNorm2D(channels), np.random.default_rng(1)
    norm.weight.set_value(random.uniform(0.5, 2, channels).astype(np.float32))
    norm.bias.set_value(random.uniform(-1, 1, channels).astype(np.float32))
    norm._mean.set_value(np.full(channels, far, np.float32))
    norm._variance.set_value(np.full(channels, 1 + far * far, np.float32))
    return norm


WAYS = pytest.mark.parametrize(
    ("summed", "rectified"), [(False, False), (False, True), (True, False), (True, True)]
)


@WAYS
@settings(max_examples=25)
@given(
    shape=st.tuples(st.integers(2, 4), st.integers(1, 5), st.integers(2, 9), st.integers(2, 9)),
    far=st.sampled_from([0.0, -30.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_results_gradients_and_running_statistics(summed, rectified, shape, far, seed):
    values, others, dy = np.random.default_rng(seed).standard_normal((3, *shape))
    found = []
    for compute in (_three_passes, _one_pass):
        norm, x = _norm(shape[1], far=far), tensor(values)
        other = tensor(others) if summed else None
        y = compute(norm, x, other, rectified=rectified)
        (y * paddle.to_tensor(dy.astype(np.float32))).sum().backward()
        gradients = [x.grad, norm.weight.grad, norm.bias.grad, *([other.grad] if summed else [])]
        found.append([tensor.numpy() for tensor in (y, norm._mean, norm._variance, *gradients)])
    for theirs, ours in zip(*found, strict=True):
        # A value next to 0 may be on the other side of the ReLU: one element of dy, not more.
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize("summed", [False, True])
def test_gradients_of_gradients(summed):
    values, norm = np.random.default_rng(0).standard_normal((2, 2, 3, 6, 5)), nn.BatchNorm2D(3)
    found = []
    for compute in (_three_passes, _one_pass):
        x, other = (tensor(part) for part in values)
        y = compute(norm, x, other if summed else None, rectified=True)
        inputs = [x, norm.weight, norm.bias, *([other] if summed else [])]
        first = paddle.grad((y**3).sum(), inputs, create_graph=True)
        sum((gradient**2).sum() for gradient in first).backward()
        found.append([tensor.numpy() for tensor in (*first, x.grad)])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-2)


@WAYS
def test_what_is_returned_as_a_gradient_is_memory_of_its_own(summed, rectified):
    """Paddle adds the gradient of a second reader to it in place; y.grad must not change with it."""
    norm, x = _norm(3), tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 4)))
    other = tensor(np.ones([2, 3, 4, 4])) * 1 if summed else None
    y = _one_pass(norm, x * 1, other, rectified=rectified)
    y.retain_grads()
    loss = y.sum()
    (loss if other is None else loss + (other * 5).sum()).backward()
    np.testing.assert_array_equal(y.grad.numpy(), np.ones(y.shape, np.float32))


@pytest.mark.parametrize(
    "x",
    [
        paddle.ones([1, 3, 1, 1]),
        paddle.ones([2, 3, 4]),
        paddle.ones([0, 3, 2, 2]),
        paddle.ones([2, 3, 2, 2], "float64"),
        paddle.ones([2, 4, 2, 2]),
    ],
    ids=["one value per channel", "three axes", "nothing", "fp64", "other channels"],
)
def test_what_it_does_not_take_is_refused(x):
    norm = _norm(3)
    assert not takes(x, norm._mean, norm._variance, norm.weight, norm.bias)
    with pytest.raises(LowbitError, match="takes"):
        _one_pass(norm, x, None, rectified=False)


@pytest.mark.parametrize("function", [F.relu6, F.hardswish])
@pytest.mark.parametrize("strange", [None, np.nan, np.inf])
def test_other_activations_have_the_bits_of_paddles(function, strange):
    kind = {F.relu6: Activation.RELU6, F.hardswish: Activation.HARDSWISH}[function]
    random = np.random.default_rng(0)
    values, dy = random.standard_normal((2, 4, 3, 9, 7)) * 3
    if strange is not None:
        values[0, 1, 2, 3] = strange  # all of channel 1 becomes NaN
    found = []
    for fused in (False, True):
        norm, x = _norm(3), tensor(values)
        norm.weight.set_value(norm.weight * 3)  # far into both ends of the activation
        with fast_norm_ops():
            y = fused_batch_norm(norm, x, activation=kind) if fused else function(norm(x))
            (y * paddle.to_tensor(dy.astype(np.float32))).sum().backward()
        found.append([t.numpy() for t in (y, norm._mean, x.grad, norm.weight.grad, norm.bias.grad)])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", [Activation.RELU6, Activation.HARDSWISH])
def test_gradients_of_gradients_of_other_activations(kind):
    def function(z: Tensor) -> Tensor:
        """By operators that have second derivatives; Paddle's own have none."""
        relu = nn.functional.relu
        if kind == Activation.RELU6:
            return relu(z) - relu(z - 6)
        return (relu(z + 3) - relu(z - 3)) * z / 6

    values, norm, found = np.random.default_rng(0).standard_normal((2, 3, 6, 5)), nn.BatchNorm2D(3), []
    for fused in (False, True):
        x = tensor(values)
        with fast_norm_ops():
            y = fused_batch_norm(norm, x, activation=kind) if fused else function(norm(x))
            first = paddle.grad((y**3).sum(), [x, norm.weight, norm.bias], create_graph=True)
            sum((gradient**2).sum() for gradient in first).backward()
        found.append([tensor.numpy() for tensor in (*first, x.grad)])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-2)


def test_a_sum_and_another_activation_are_not_fused():
    norm, x = _norm(3), tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 4)))
    with fast_norm_ops():
        assert fused_batch_norm(norm, x, x * 2, activation=Activation.RELU6) is None
        assert fused_batch_norm(norm, x, x * 2, activation=Activation.RELU) is not None


def test_an_other_of_another_shape_is_not_taken():
    norm, x = _norm(3), paddle.ones([2, 3, 2, 2])
    assert takes(x, norm._mean, norm._variance, None, None, x)
    assert not takes(x, norm._mean, norm._variance, None, None, paddle.ones([2, 3, 1, 1]))


def test_an_input_of_whole_multiples_is_kept_in_two_bytes():
    """The input itself goes with its last reader."""
    norm, x = nn.BatchNorm2D(4), paddle.ones([16, 4, 32, 32])
    x.stop_gradient = False
    product = x * 3
    size = product.size * 4
    y = _one_pass(norm, product, None, rectified=True, scale=paddle.ones([16, 4]))
    before = core.host_memory_stat_current_value("Allocated", 0)
    del product
    assert before - core.host_memory_stat_current_value("Allocated", 0) >= size
    y.sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize(("largest", "has_high_bits"), [(20, False), (2**21, True)])
def test_gradients_of_gradients_of_the_parameters_from_multiples(largest, has_high_bits):
    """Where the input itself has no gradient, the multiples do."""
    values = np.random.default_rng(0).integers(-largest, largest, (2, 3, 6, 5)).astype(np.float32) / 4
    found = []
    for scale in (None, paddle.full([2, 3], 0.25)):
        norm, x = _norm(3), paddle.to_tensor(values)
        y = _one_pass(norm, x, None, rectified=False, scale=scale, has_high_bits=has_high_bits)
        first = paddle.grad((y**3).sum(), [norm.weight, norm.bias], create_graph=True)
        sum((gradient**2).sum() for gradient in first).backward()
        found.append([tensor.numpy() for tensor in (*first, norm.weight.grad)])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("name", ["batch norm", "relu"])
def test_gradients_of_gradients_of_each_operator(name):
    values, norm = np.random.default_rng(0).standard_normal((2, 3, 6, 6)), nn.BatchNorm2D(3)
    operator, parameters = (F.relu, []) if name == "relu" else (norm, [norm.weight, norm.bias])

    def run() -> list[Tensor]:
        x = tensor(values)
        first = paddle.grad((operator(x) ** 3).sum(), [x, *parameters], create_graph=True)
        sum((gradient**2).sum() for gradient in first).backward()
        return [*first, x.grad]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-3, atol=1e-3)


def test_gradients_of_gradients_of_a_max_pool():
    """Which Paddle's own does not give."""
    x = tensor(np.random.default_rng(0).standard_normal((2, 3, 6, 6)))
    with fast_norm_ops():
        y = F.max_pool2d(x, 3, 2, 1)
        (times,) = paddle.grad(y.sum(), x, retain_graph=True)  # as often as it is a window's largest
        (first,) = paddle.grad((y**3).sum(), x, create_graph=True)
        (second,) = paddle.grad((first**2).sum(), x)
    np.testing.assert_allclose(first.numpy(), (times * 3 * x**2).numpy(), rtol=1e-5)
    np.testing.assert_allclose(second.numpy(), (36 * times**2 * x**3).numpy(), rtol=1e-4)


def test_a_tensor_changed_in_place_before_its_gradient_is_an_error():
    norm, x = nn.BatchNorm2D(3), paddle.randn([2, 3, 4, 4])
    with fast_norm_ops():
        y = norm(x)
        x.add_(paddle.ones([1]))
        with pytest.raises((OSError, LowbitError), match="changed in place"):
            y.sum().backward()


def _low_precision(bits: int) -> nn.Layer:
    grid = {"grid": f"int{bits}", "granularity": "N"}
    gradient = {"grid": f"int{bits}", "rounding": "stochastic"}
    rule = {
        "forward": {"input": grid, "weight": grid},
        "grad_input": {"grad_output": gradient, "weight": grid | {"granularity": "C"}},
        "grad_weight": {"grad_output": gradient, "input": grid},
    }
    paddle.seed(0)
    model = nn.Sequential(nn.Conv2D(3, 5, 3, bias_attr=False), nn.BatchNorm2D(5), nn.ReLU())
    prepare(model, make_recipe({"rules": [rule]}))
    seed_rounding(model, 0)
    return model


@pytest.mark.parametrize(("bits", "size"), [(4, 2), (8, 3)])
def test_behind_a_product_of_integers_a_batch_norm_keeps_its_input_as_such(bits, size, monkeypatch):
    kept, found = [], []
    backward = BatchNormNode.backward
    for forget in (False, True):
        model = _low_precision(bits)
        x = tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
        if forget:
            monkeypatch.setattr(module, "attached_scale", lambda x: None)
        monkeypatch.setattr(
            BatchNormNode, "backward", lambda ctx, dy: kept.append(ctx.norm.multiples) or backward(ctx, dy)
        )
        with fast_norm_ops():
            model(x).square().sum().backward()
        learned = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
        found.append([tensor.grad.numpy() for tensor in (x, *learned)])
    assert kept[0].bytes == size and kept[1] is None
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.add_(paddle.full([1], 0.37)),
        lambda y: y.scale_(2.0),
        lambda y: y.__setitem__((slice(None), 0), 0.123),
        lambda y: y.__setitem__((1, 2, 3, 3), 1e-30),
        lambda y: y.set_value(np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)),
        lambda y: y.reshape_([2, 15, 2, 6]),
        lambda y: y.reshape_([4, 5, 3, 6]),
        lambda y: y.transpose_([0, 2, 1, 3]),
    ],
    ids=["sum", "product", "a channel", "a value", "all", "channels", "images", "transposed"],
)
def test_a_product_changed_in_place_is_normalized_as_it_is(change, bits, monkeypatch):
    """The scale that came with it is a proposal: what the batch norm keeps is verified."""
    found = []
    for forget in (False, True):
        model = _low_precision(bits)
        x = tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
        if forget:
            monkeypatch.setattr(module, "attached_scale", lambda x: None)
        with fast_norm_ops():
            y = model[0](x)
            change(y)
            norm = nn.BatchNorm2D(y.shape[1])
            z = norm(y)
            z.square().sum().backward()
        found.append([tensor.numpy() for tensor in (z, norm.weight.grad, norm.bias.grad, norm._mean)])
        found[-1] += [] if x.grad is None else [x.grad.numpy(), model[0].weight.grad.numpy()]
    assert len(found[0]) == len(found[1])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_there_are_no_gradients_of_gradients_of_what_is_kept_in_two_bytes():
    model, x = _low_precision(4), tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
    learned = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    with fast_norm_ops(), pytest.raises((OSError, LowbitError), match="second-order gradients"):
        paddle.grad(model(x).sum(), [x, *learned], create_graph=True)
