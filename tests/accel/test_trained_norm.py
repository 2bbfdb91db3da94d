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

from lowbit.accel.fused_norm import BatchNorm, Statistics, takes
from lowbit.errors import LowbitError
from lowbit.kernels import kernels, why_missing
from tests.support.accel_pairs import tensor

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


def _one_pass(
    norm: nn.BatchNorm2D, x: Tensor, other: Tensor | None, *, rectified: bool, scale=None
) -> Tensor:
    batch = [paddle.empty([x.shape[1]]) for _ in range(2)]
    statistics = Statistics(norm._mean, norm._variance, *batch, norm._epsilon, norm._momentum, scale)
    return BatchNorm.apply(x, norm.weight, norm.bias, other, statistics, rectified)


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


def test_gradients_of_gradients_of_the_parameters_from_multiples():
    """Where the input itself has no gradient, the multiples do."""
    values = np.random.default_rng(0).integers(-20, 20, (2, 3, 6, 5)).astype(np.float32) / 4
    found = []
    for scale in (None, paddle.full([2, 3], 0.25)):
        norm, x = _norm(3), paddle.to_tensor(values)
        y = _one_pass(norm, x, None, rectified=False, scale=scale)
        first = paddle.grad((y**3).sum(), [norm.weight, norm.bias], create_graph=True)
        sum((gradient**2).sum() for gradient in first).backward()
        found.append([tensor.numpy() for tensor in (*first, norm.weight.grad)])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
