"""lowbit's batch norm, ReLU and max-pool give what Paddle's give, and only in training."""

from __future__ import annotations

import threading

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import Tensor, _C_ops, nn
from paddle.nn import functional as F

from lowbit.accel import norm_ops as module
from lowbit.accel.fused_norm import BatchNormNode
from lowbit.accel.norm_ops import (
    Hardswish,
    MaxPool,
    Relu,
    channel_product,
    fast_norm_ops,
    norm_library,
    padded_shortcut,
)
from lowbit.kernels import kernels, why_missing
from lowbit.models.resnet_cifar import BasicBlock
from tests.support.accel_pairs import both_ways, tensor

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of our operators have run."""
    names: list[str] = []
    for kind in (BatchNormNode, MaxPool, Relu):
        apply = kind.apply
        monkeypatch.setattr(
            kind, "apply", lambda *a, _apply=apply, _name=kind.__name__: names.append(_name) or _apply(*a)
        )
    return names


_SIZES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 19), st.integers(1, 19))


@settings(max_examples=80)
@given(
    shape=_SIZES,
    affine=st.sampled_from([(True, True), (True, False), (False, True), (False, False)]),
    momentum=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 1000),
)
def test_batch_norm_is_paddles_to_float_rounding(shape, affine, momentum, seed):
    random = np.random.default_rng(seed)
    values, dy = random.standard_normal((2, *shape)) * 2 + 1
    parameters = random.uniform(0.5, 2, (4, shape[1]))

    def run() -> list[Tensor]:
        x = tensor(values)
        weight, bias, mean, variance = map(tensor, parameters)
        mean.stop_gradient = variance.stop_gradient = True
        own = [tensor if wanted else None for tensor, wanted in zip((weight, bias), affine, strict=True)]
        y = F.batch_norm(x, mean, variance, *own, training=True, momentum=momentum)
        y.backward(paddle.to_tensor(dy.astype(np.float32)))
        # Paddle gives no gradients of one of them without the other, nor of one value per channel.
        learned = [weight.grad, bias.grad] if all(affine) and weight.grad is not None else []
        return [y, mean, variance, x.grad, *learned]

    paddles, ours = both_ways(run)
    few = values.size // shape[1] < 8  # then a deviation can be next to nothing, and 1 / it next to anything
    for theirs, own in zip(paddles, ours, strict=True):
        tolerance = 1e-3 * max(1, float(np.abs(theirs).max())) if few else 2e-4
        np.testing.assert_allclose(own, theirs, rtol=2e-4, atol=tolerance)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_channel_as_in_paddle(bad):
    values = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    values[1, 1, 2, 2] = bad

    def run() -> list[Tensor]:
        x, norm = tensor(values), nn.BatchNorm2D(3)
        y = norm(x)
        y.sum().backward()
        return [y, norm._mean, norm._variance, x.grad, norm.weight.grad, norm.bias.grad]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_array_equal(np.isfinite(own), np.isfinite(theirs))


@settings(max_examples=60)
@given(shape=st.lists(st.integers(1, 9), min_size=0, max_size=5), seed=st.integers(0, 1000))
def test_relu_has_paddles_bits(shape, seed):
    random = np.random.default_rng(seed)
    values, dy = random.standard_normal((2, *shape))
    strange = random.choice([0.0, -0.0, np.nan, np.inf, -np.inf], (2, *shape))
    values, dy = np.where(random.random((2, *shape)) < 0.2, strange, [values, dy])

    def run() -> list[Tensor]:
        x = tensor(values)
        y = F.relu(x)
        y.backward(paddle.to_tensor(dy.astype(np.float32)))
        return [y, x.grad]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_array_equal(own, theirs)


@settings(max_examples=120)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(3, 19), st.integers(3, 19)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.one_of(
        st.integers(0, 1),
        st.lists(st.integers(0, 1), min_size=4, max_size=4),
        st.sampled_from(["SAME", "VALID"]),
    ),
    ceil_mode=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_max_pool_has_paddles_bits(shape, kernel, stride, padding, ceil_mode, seed):
    random = np.random.default_rng(seed)
    values = np.maximum(random.integers(-3, 6, shape), 0)  # many equals
    ceil_mode = ceil_mode and padding != "VALID"
    # Paddle's own cannot have more padding than half the window.
    padding = padding if min(kernel) > 1 or isinstance(padding, str) else 0

    def run() -> list[Tensor]:
        x = tensor(values)
        y = F.max_pool2d(x, list(kernel), list(stride), padding, ceil_mode=ceil_mode)
        y.backward(paddle.to_tensor(np.arange(y.size, dtype=np.float32).reshape(y.shape) % 7 - 3))
        return [y, x.grad]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_array_equal(own, theirs)


def test_it_is_really_ours_that_runs_and_only_inside(used):
    before = [_C_ops.batch_norm, _C_ops.relu, _C_ops.pool2d]
    model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU(), nn.MaxPool2D(3, 2, 1))
    x = paddle.randn([2, 3, 8, 8])
    with fast_norm_ops():
        model(x)
        assert used == ["BatchNormNode", "Relu", "MaxPool"]
    model(x)
    assert len(used) == 3 and [_C_ops.batch_norm, _C_ops.relu, _C_ops.pool2d] == before


def test_everything_else_is_paddles(used):
    x = paddle.randn([2, 4, 8, 8])
    x.stop_gradient = False
    frozen = x.detach()
    with fast_norm_ops():
        evaluating = nn.BatchNorm2D(4)
        evaluating.eval()
        evaluating(x)
        nn.BatchNorm2D(4, use_global_stats=True)(x)
        nn.BatchNorm2D(8, data_format="NHWC")(x)
        nn.BatchNorm1D(4)(x.flatten(2))
        nn.BatchNorm2D(4)(x[:1, :, :1, :1])  # one value per channel
        F.relu(frozen), F.relu(x.cast("float64")), F.max_pool2d(frozen, 2), F.avg_pool2d(x, 2)
        F.max_pool2d(x, 5), F.max_pool2d(x, 3, 3), F.max_pool2d(x, 2, data_format="NHWC")
        F.adaptive_max_pool2d(x, 2), F.max_pool2d(x, 2, return_mask=True), F.relu(paddle.zeros([0]))
        with paddle.no_grad():
            F.relu(x), F.max_pool2d(x, 2)
    assert not used


@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_has_the_same_bits_without_gradients(affine, used):
    """As `recompute` needs it, which runs a block without gradients first."""
    attribute = None if affine else False
    norm, x = nn.BatchNorm2D(4, weight_attr=attribute, bias_attr=attribute), paddle.randn([3, 4, 9, 9])
    x.stop_gradient = False
    with fast_norm_ops():
        with_gradient = norm(x)
        with paddle.no_grad():
            without = norm(x)
    assert used == ["BatchNormNode"] * 2 and without.stop_gradient
    np.testing.assert_array_equal(with_gradient.numpy(), without.numpy())


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (2, 3, 1, 1), (1, 3, 1, 2), (4, 3, 1, 1)])
@pytest.mark.parametrize("far", [0.0, 1e3, 1e8])
def test_few_values_per_channel_and_statistics_far_away(shape, far):
    values = np.random.default_rng(0).standard_normal(shape)

    def run() -> list[Tensor]:
        norm, x = nn.BatchNorm2D(3), tensor(values)
        norm._mean.set_value(np.full(3, -far, np.float32))
        norm._variance.set_value(np.full(3, 1 + far, np.float32))
        y = norm(x)
        (y * paddle.to_tensor(np.arange(y.size, dtype=np.float32).reshape(shape))).sum().backward()
        norm.eval()
        learned = [norm.weight.grad, norm.bias.grad]
        return [y, x.grad, *learned, norm._mean, norm._variance, norm(x)]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_max_pool_of_what_is_not_finite_is_paddles(bad):
    values = np.random.default_rng(0).standard_normal((1, 2, 6, 6))
    values[0, 0, :3, :3] = bad
    values[0, 1, 4, 4] = bad

    def run() -> list[Tensor]:
        x = tensor(values)
        y = F.max_pool2d(x, 2)
        y.sum().backward()
        return [y, x.grad]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_array_equal(own, theirs)


def test_operators_in_place_behind_ours():
    values = np.random.default_rng(0).standard_normal((3, 4, 6, 6))

    def run() -> list[Tensor]:
        norm, x = nn.BatchNorm2D(4), tensor(values)
        y = F.relu_(norm(x))
        z = F.max_pool2d(F.relu(y - 0.5), 2)
        z *= 2
        z.add_(paddle.ones([1]))
        (z * z).sum().backward()
        return [z, x.grad, norm.weight.grad]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-4)


def test_other_threads_use_paddles(used):
    """Such as those of a DataLoader."""
    x = paddle.randn([2, 4, 8, 8])
    x.stop_gradient = False
    with fast_norm_ops():
        thread = threading.Thread(target=lambda: F.relu(nn.BatchNorm2D(4)(x)))
        thread.start()
        thread.join()
        assert not used
        F.relu(x)
    assert used == ["Relu"]


def test_a_batch_norm_behind_frozen_layers_learns_alone(used):
    norm, x = nn.BatchNorm2D(3), paddle.randn([2, 3, 5, 5])
    with fast_norm_ops():
        norm(x).square().sum().backward()
    assert used == ["BatchNormNode"] and norm.weight.grad is not None and norm.bias.grad is not None
    assert x.grad is None


def test_a_part_of_a_larger_tensor_is_read_right():
    whole = np.random.default_rng(0).standard_normal((4, 6, 9, 9))

    def run() -> list[Tensor]:
        found = []
        for operator in (nn.BatchNorm2D(3), F.relu, lambda x: F.max_pool2d(x, 2)):
            x = tensor(whole)
            y = operator(x[::2, 1:4, :, ::2])
            y.square().sum().backward()
            found += [y, x.grad]
        return found

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-4)


def test_a_program_exported_inside_uses_paddles_operators(tmp_path):
    model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU(), nn.MaxPool2D(2))
    model.eval()
    with fast_norm_ops():
        paddle.jit.save(model, str(tmp_path / "m"), [paddle.static.InputSpec([None, 3, 8, 8], "float32")])
    x = paddle.randn([2, 3, 8, 8])
    served = paddle.jit.load(str(tmp_path / "m"))(x)
    np.testing.assert_allclose(served.numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)


def test_without_kernels_paddle_does_it(monkeypatch):
    monkeypatch.setattr(module, "kernels", lambda: None)
    before = _C_ops.relu
    with fast_norm_ops():
        assert _C_ops.relu is before
    assert norm_library(wanted=True) == "Paddle"


def test_a_network_trains_the_same():
    from lowbit.models import build_model

    images, labels = paddle.randn([8, 3, 32, 32]), paddle.randint(0, 10, [8])
    start = {name: tensor.numpy() for name, tensor in build_model("resnet20", 10).state_dict().items()}

    def run() -> list[Tensor]:
        model = build_model("resnet20", 10)
        model.set_state_dict(start)
        optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
        for _ in range(3):
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        return [loss, *model.state_dict().values()]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("shape", "stride"), [([2, 4, 6, 6], 2), ([1, 2, 5, 7], 2), ([2, 2, 8, 5], 3)])
def test_a_padded_shortcut_is_slicing_and_concatenation(shape, stride):
    random = np.random.default_rng(0)
    values = random.standard_normal(shape).astype(np.float32)
    block = BasicBlock(shape[1], 2 * shape[1] + 2, stride)

    def run(shortcut) -> list[np.ndarray]:
        x = paddle.to_tensor(values, stop_gradient=False)
        with fast_norm_ops():
            y = shortcut(x)
        (y**3).sum().backward()
        return [y.numpy(), x.grad.numpy()]

    fast = run(lambda x: padded_shortcut(x, stride, block.zero_channels))
    for one, other in zip(fast, run(block._shortcut), strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradients_of_gradients_go_through_a_padded_shortcut():
    x = paddle.to_tensor(np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3), stop_gradient=False)
    with fast_norm_ops():
        y = padded_shortcut(x, 2, 1)
    (dx,) = paddle.grad((y**3).sum(), x, create_graph=True)
    (found,) = paddle.grad((dx**2).sum(), x)
    kept = np.zeros([3, 3], np.float32)
    kept[::2, ::2] = 1
    np.testing.assert_array_equal(found.numpy(), 36 * x.numpy() ** 3 * kept)


def test_a_product_with_scales_of_channels_is_paddles():
    random = np.random.default_rng(0)
    x, scale, factor = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ([3, 5, 9, 7], [3, 5, 1, 1], [3, 5, 9, 7])
    )

    def run(*, fast: bool, second_order: bool) -> list[np.ndarray]:
        scales, images = (paddle.to_tensor(one, stop_gradient=False) for one in (scale, x))
        with fast_norm_ops():
            y = channel_product(scales, images) if fast else scales * images
        loss = (y * y * paddle.to_tensor(factor)).sum()
        dscale, dx = paddle.grad(loss, [scales, images], create_graph=second_order)
        if second_order:
            dscale, dx = paddle.grad((dscale**2).sum() + (dx**2).sum(), [scales, images])
        return [y.numpy(), dx.numpy(), dscale.numpy()]

    for second_order in (False, True):
        fast, plain = (run(fast=fast, second_order=second_order) for fast in (True, False))
        for one, other in zip(fast, plain, strict=True):
            if second_order:
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(3, 5, 9, 7), (2, 8, 1, 1), (1, 17, 4, 4), (16, 24, 14, 14)])
@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2D(1), lambda x: F.adaptive_avg_pool2d(x, [1, 1])])
def test_global_average_pooling_has_paddles_bits(shape, pool):
    random = np.random.default_rng(0)
    values = random.standard_normal(shape).astype(np.float32)
    factor = paddle.to_tensor(random.standard_normal((*shape[:2], 1, 1)).astype(np.float32))

    def run(*, fast: bool) -> tuple[list[np.ndarray], bool]:
        x = paddle.to_tensor(values, stop_gradient=False)
        with fast_norm_ops(wanted=fast):
            y = pool(x)
        (dx,) = paddle.grad((y * factor).sum(), [x], retain_graph=not fast)
        return [y.numpy(), dx.numpy()], "ChannelMean" in y.grad_fn.name()

    (fast, is_ours), (plain, _) = run(fast=True), run(fast=False)
    assert is_ours
    for one, other in zip(fast, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradients_of_gradients_go_through_global_average_pooling():
    x = paddle.to_tensor(np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3), stop_gradient=False)
    with fast_norm_ops():
        y = F.adaptive_avg_pool2d(x, 1)
    (dx,) = paddle.grad((y**3).sum(), x, create_graph=True)
    (found,) = paddle.grad((dx**2).sum(), x)
    mean = x.numpy().mean((2, 3), keepdims=True)
    np.testing.assert_allclose(found.numpy(), 36 * mean**3 / 81 * np.ones((1, 1, 3, 3)), rtol=1e-5)


def test_other_shapes_and_places_are_for_paddle():
    x, scale = paddle.ones([2, 3, 4, 4]), paddle.ones([2, 3, 1, 1])
    assert channel_product(scale, x) is None  # outside
    with fast_norm_ops():
        assert channel_product(paddle.ones([1, 3, 1, 1]), x) is None
        assert channel_product(scale.cast("float64"), x.cast("float64")) is None
        assert channel_product(scale, x) is not None


def test_hard_swish_has_paddles_bits():
    random = np.random.default_rng(0)
    values = np.concatenate(
        [4 * random.standard_normal(1 << 17), [0, -0.0, 3, -3, 2.9999998, -2.9999998, 1e-40, np.inf]]
    ).astype(np.float32)
    given = random.standard_normal(values.size).astype(np.float32)

    def run(*, fast: bool, create_graph: bool = False) -> list[np.ndarray]:
        x = paddle.to_tensor(values, stop_gradient=False)
        with fast_norm_ops(wanted=fast):
            y = F.hardswish(x)
        (dx,) = paddle.grad(y, x, paddle.to_tensor(given), create_graph=create_graph)
        return [y.numpy(), dx.numpy()]

    plain = run(fast=False)
    for found in (run(fast=True), run(fast=True, create_graph=True)):
        for one, other in zip(found, plain, strict=True):
            np.testing.assert_array_equal(one, other)


def test_hard_swish_is_replaced_where_a_gradient_is_wanted(monkeypatch):
    calls = []
    monkeypatch.setattr(Hardswish, "apply", lambda x: calls.append(x))  # None: Paddle's own runs
    with fast_norm_ops():
        for wanted in (True, False):
            F.hardswish(paddle.to_tensor([1.0], stop_gradient=not wanted))
    F.hardswish(paddle.to_tensor([1.0], stop_gradient=False))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("scale", "expected"),
    [([1, 3, 1, 1], [2, 3, 1, 1]), ([2, 3, 1, 1], [2, 3, 1, 1]), ([1, 1, 1, 4], None), ([2, 5, 1, 1], None)],
)
def test_the_scale_of_every_channel_of_every_image_or_none_of_another_layout(scale, expected):
    y = paddle.zeros([2, 3, 4, 4])
    attached = paddle.arange(1, 1 + int(np.prod(scale)), dtype="float32").reshape(scale)
    setattr(y, module.SCALE_ATTRIBUTE, (attached, False))
    found = module.attached_scale(y)
    if expected is None:
        assert found is None
    else:
        assert np.array_equal(found.scale.numpy(), np.broadcast_to(attached.numpy(), expected))
