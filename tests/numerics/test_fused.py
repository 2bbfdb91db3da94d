"""The fused kernels against plain operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.quantization import Layout
from lowbit.numerics import (
    fake_quantize,
    fused,
    fused_groups,
    lsq_fake_quantize,
    pact_clip,
    pact_fake_quantize,
    parse_grid,
    parse_observer,
    quantize_to_integers,
)
from lowbit.numerics.fused import new_tensor
from tests.support.numerics_twin import F32, HUGE, TINY, assert_same_bits, grids

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
INT4, UINT4 = parse_grid("int4"), parse_grid("uint4")

# Shapes of tensors and of what is broadcast to them: Conv2D and Linear weights, activations; sizes beside
# multiples of the vectors' widths, and more than one block of sums.
SHAPES = [
    ((7,), (1,)),
    ((3, 5, 7), ()),
    ((2, 3, 4, 5), (1,)),
    ((2, 3, 5, 7), (3, 1, 1)),
    ((5, 3, 3, 3), (5, 1, 1, 1)),
    ((19, 33), (1, 33)),
    ((19, 33), (19, 1)),
    ((2, 3, 2, 2), (2, 3, 1, 1)),
    ((4, 1), (4, 1)),
    ((2, 1500), (1, 1500)),
    ((2, 2600), (2, 1)),
]
ODD = F32([0, -0.0, 0.5, -0.5, 1.5, 2.5, -7.5, 7.5, -8.5, 1e-45, -1e-40, TINY, HUGE, -HUGE, np.inf, -np.inf])
cases = given(
    shapes=st.sampled_from(SHAPES),
    grid=grids,
    variant=st.sampled_from(kernels().variants if kernels() else ["none"]),
    seed=st.integers(0, 2**32 - 1),
    nan=st.booleans(),
)


@contextmanager
def using(variant: str) -> Iterator[None]:
    before = kernels().variant
    kernels().select_variant(variant)
    yield
    kernels().select_variant(before)


@contextmanager
def no_kernels() -> Iterator[None]:
    with (
        patch.object(fused, "kernels", lambda: None),
        patch.object(fused_groups, "quantize_kernels", lambda: None),
    ):
        yield


def odd_values(shape: tuple[int, ...], rng: np.random.Generator, nan: bool = False) -> np.ndarray:
    """Ordinary values with odd ones strewn in."""
    x = rng.standard_normal(shape) * 4
    odd = np.append(ODD, F32(np.nan)) if nan else ODD
    return np.where(rng.random(shape) < 0.2, rng.choice(odd, shape), x).astype(F32)


def make(shapes, seed: int, nan: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, their gradients, scales and bounds; with a scale of 0.5 there are halves among x / scale."""
    shape, own = shapes
    rng = np.random.default_rng(seed)
    scale = np.where(rng.random(own) < 0.5, 0.5, rng.uniform(0.05, 1, own)).astype(F32)
    bound = np.where(rng.random(own) < 0.2, -1.0, rng.uniform(0.5, 4, own)).astype(F32)
    return odd_values(shape, rng, nan), rng.standard_normal(shape).astype(F32), scale, bound


def gradients(function, x, dy, *learned):
    """The result, and the gradients of `x` and of what is learned, None where there is none."""
    tensors = [paddle.to_tensor(value, stop_gradient=False) for value in (x, *learned)]
    y = function(*tensors)
    y.backward(paddle.to_tensor(dy))
    return [y.numpy(), *(None if t.grad is None else t.grad.numpy() for t in tensors)]


def assert_sums_agree(found: np.ndarray, expected: np.ndarray, terms: float) -> None:
    """To 1e-5 of what was added up: sums that cancel have no digits of their own."""
    assert found.shape == expected.shape and found.dtype == expected.dtype == F32
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite)
    assert (np.abs(found - expected)[finite] <= 1e-5 * terms).all()


@cases
@settings(max_examples=150)
def test_straight_through_equals_plain_operators(shapes, grid, variant, seed, nan):
    x, dy, scale, _ = make(shapes, seed, nan)

    def run():
        integers = quantize_to_integers(paddle.to_tensor(x), paddle.to_tensor(scale), grid).numpy()
        frozen = fake_quantize(paddle.to_tensor(x), paddle.to_tensor(scale), grid).numpy()
        return integers, frozen, *gradients(lambda x, s: fake_quantize(x, s, grid), x, dy, scale)

    with using(variant):
        *found, dscale = run()
    with no_kernels():
        *expected, _ = run()
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)
    assert dscale is None


@cases
@settings(max_examples=150)
def test_pact_equals_clipping_and_then_quantizing(shapes, grid, variant, seed, nan):
    x, dy, scale, bound = make(shapes, seed, nan)
    step = paddle.to_tensor(scale)

    def both(x, alpha):
        return fake_quantize(pact_clip(x, alpha, signed=grid.signed), step, grid)

    with (
        using(variant),
        patch.object(fused, "straight_through", wraps=fused.straight_through) as taken,
        patch.object(fused, "on_grid_marked", wraps=fused.on_grid_marked) as marked,
    ):
        found = gradients(lambda x, alpha: pact_fake_quantize(x, alpha, step, grid), x, dy, bound)
        frozen = pact_fake_quantize(paddle.to_tensor(x), paddle.to_tensor(bound), step, grid).numpy()
    assert taken.called is not marked.called
    assert marked.called is (scale.size == bound.size == 1)
    with no_kernels():
        expected = gradients(both, x, dy, bound)
    for one, other in zip((found[0], frozen, found[1]), (expected[0], *expected[:2]), strict=True):
        assert_same_bits(one, other)
    assert_sums_agree(found[2], expected[2], np.abs(dy).sum())


@cases
@settings(max_examples=150)
def test_lsq_equals_plain_operators(shapes, grid, variant, seed, nan):
    x, dy, scale, _ = make(shapes, seed, nan)

    def run():
        return gradients(lambda x, step: lsq_fake_quantize(x, step, grid), x, dy, scale)

    with using(variant):
        found = run()
    with no_kernels():
        expected = run()
    assert_same_bits(found[0], expected[0])
    assert_same_bits(found[1], expected[1])
    assert_sums_agree(found[2], expected[2], np.abs(dy).sum() * max(-grid.lowest, grid.highest))


@cases
@settings(max_examples=150)
def test_the_largest_magnitude_equals_plain_operators(shapes, grid, variant, seed, nan):
    shape, own = shapes
    x, _, _, bound = make(shapes, seed, nan)
    own = (1,) * (len(shape) - len(own)) + own
    axes = tuple(axis for axis, size in enumerate(own) if size == 1)
    observe = parse_observer("minmax").range

    def run():
        tensor = paddle.to_tensor(x)
        return observe(tensor, grid, axes), observe(tensor, grid, axes, bound=paddle.to_tensor(bound))

    with using(variant):
        assert fused_groups.ranges(paddle.to_tensor(x), axes) is not None
        found = run()
    with no_kernels():
        expected = run()
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one.numpy(), other.numpy())


def test_sums_are_the_same_bits_with_every_instruction_set():
    x, dy, scale, bound = make(((3, 4, 2600), (4, 1)), seed=0, nan=False)
    sums = set()
    for variant in kernels().variants:
        with using(variant):
            of_bound = gradients(
                lambda x, a: pact_fake_quantize(x, a, paddle.to_tensor(scale), INT4), x, dy, bound
            )
            of_step = gradients(lambda x, s: lsq_fake_quantize(x, s, INT4), np.clip(x, -9, 9), dy, scale)
            sums.add(of_bound[2].tobytes() + of_step[2].tobytes())
    assert len(sums) == 1


@pytest.mark.parametrize("learns", [(True, False), (False, True)])
def test_either_may_be_frozen(learns):
    x, dy, scale, bound = make(((2, 3, 5, 7), (3, 1, 1)), seed=0, nan=False)
    step = paddle.to_tensor(scale)
    for function, value in (
        (lambda x, a: pact_fake_quantize(x, a, step, INT4), bound),
        (lambda x, s: lsq_fake_quantize(x, s, INT4), scale),
    ):
        whole = gradients(function, x, dy, value)[1:]
        tensors = [
            paddle.to_tensor(v, stop_gradient=not on) for v, on in zip((x, value), learns, strict=True)
        ]
        function(*tensors).backward(paddle.to_tensor(dy))
        for tensor, on, expected in zip(tensors, learns, whole, strict=True):
            assert (tensor.grad is not None) == on
            if on:
                assert_same_bits(tensor.grad.numpy(), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bounds_and_scales_that_are_not_finite(bad):
    x, dy, _, _ = make(((5, 9), (5, 1)), seed=0, nan=True)
    for scale, bound in ((bad, 1.0), (0.5, bad)):
        scale, bound = paddle.full([1], scale), np.full([1], bound, F32)

        def run(grid, scale=scale, bound=bound):
            return gradients(lambda x, a: pact_fake_quantize(x, a, scale, grid), x, dy, bound)

        for grid in (INT4, UINT4):
            found = run(grid)
            with no_kernels():
                expected = run(grid)
            for one, other in zip(found[:2], expected[:2], strict=True):
                assert_same_bits(one, other)
            assert_sums_agree(found[2], expected[2], np.abs(dy).sum())


@pytest.mark.parametrize(
    ("shape", "own", "expected"),
    [
        ((2, 3, 4, 5), (1,), Layout(1, 1, 120)),
        ((2, 3, 4, 5), (3, 1, 1), Layout(2, 3, 20)),
        ((2, 3, 4, 5), (2, 1, 1, 1), Layout(1, 2, 60)),
        ((2, 3, 4, 5), (2, 3, 1, 1), Layout(1, 6, 20)),
        ((6, 4), (1, 4), Layout(6, 4, 1)),
        ((2, 3, 4, 5), (2, 1, 4, 5), None),  # apart from each other
        ((2, 3), (1, 1, 3), None),  # more axes: the result has them too
        ((1, 3), (4, 1), None),  # larger than the tensor
        ((0, 3), (1,), None),
    ],
)
def test_layouts(shape, own, expected):
    assert fused.layout(paddle.zeros(shape), paddle.ones(own)) == expected


def test_what_a_kernel_cannot_read_goes_the_plain_way():
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((6, 4)).astype(F32))
    scale = paddle.full([1], 0.3)
    turned = x.transpose([1, 0])
    assert not turned.is_contiguous()
    for tensor in (turned, x.cast("float64"), x.cast("bfloat16"), x[:0]):
        assert fused.layout(tensor, scale) is None
        tensor.stop_gradient = False
        y = pact_fake_quantize(tensor, paddle.full([1], 1.0), scale, INT4)
        assert y.dtype == tensor.dtype and y.shape == tensor.shape
    found = fake_quantize(turned, scale, INT4).numpy()
    assert_same_bits(found, np.ascontiguousarray(fake_quantize(x, scale, INT4).numpy().T))
    # A bound and a scale that are laid out differently.
    assert fused.layout(x, scale, paddle.ones([4])) is None
    y = pact_fake_quantize(x, paddle.full([1], 1.0), paddle.full([4], 0.3), INT4)
    assert_same_bits(y.numpy(), pact_fake_quantize(x, paddle.full([1], 1.0), scale, INT4).numpy())


def test_gradients_that_come_in_another_order_of_memory():
    x, dy, _, _ = make(((6, 4), (1,)), seed=0, nan=False)
    kept = []
    for transposed in (False, True):
        tensor = paddle.to_tensor(x, stop_gradient=False)
        given_ = paddle.to_tensor(dy.T.copy()).transpose([1, 0]) if transposed else paddle.to_tensor(dy)
        fake_quantize(tensor, paddle.full([1], 0.3), INT4).backward(given_)
        kept.append(tensor.grad.numpy())
    assert_same_bits(*kept)


def test_gradients_of_gradients_are_recorded():
    x = paddle.to_tensor([0.3, 9.0], stop_gradient=False)
    alpha, scale = paddle.to_tensor([1.0]), paddle.to_tensor([0.25])
    for function in (
        lambda x: fake_quantize(x, scale, INT4),
        lambda x: pact_fake_quantize(x, alpha, scale, INT4),
        lambda x: lsq_fake_quantize(x, scale, INT4),
    ):
        (first,) = paddle.grad((function(x) ** 2).sum(), [x], create_graph=True)
        (second,) = paddle.grad(first.sum(), [x])
        assert second.tolist() == [2.0, 0.0]


def test_a_tensor_that_was_changed_in_place_is_an_error():
    scale, alpha = paddle.full([1], 0.3), paddle.full([1], 0.5)
    alpha.stop_gradient = False
    for function in (
        lambda x: fake_quantize(x, scale, INT4),
        lambda x: pact_clip(x, alpha),
        lambda x: pact_fake_quantize(x, paddle.full([3], 0.5), paddle.full([3], 0.3), INT4),
        lambda x: lsq_fake_quantize(x, scale, INT4),
    ):
        x = paddle.ones([3])
        x.stop_gradient = False
        value = x * 1
        y = function(value)
        with paddle.no_grad():
            value.add_(paddle.ones([3]))
        with pytest.raises(OSError, match="changed in place"):  # Paddle puts ours into one of its own
            y.sum().backward()


def test_a_tensor_that_only_its_marks_are_kept_of_may_change_in_place():
    alpha = paddle.to_tensor([0.5], stop_gradient=False)
    x = paddle.to_tensor([1.0, 0.25, -1.0], stop_gradient=False)
    value = x * 1
    y = pact_fake_quantize(value, alpha, paddle.full([1], 0.3), INT4)
    with paddle.no_grad():
        value.add_(paddle.ones([3]))
    y.backward(paddle.to_tensor([3.0, 4.0, 5.0]))
    assert (x.grad.tolist(), alpha.grad.tolist()) == ([0.0, 4.0, 0.0], [-2.0])


def test_shape_type_and_all_of_its_memory_in_large_pages(monkeypatch: pytest.MonkeyPatch):
    advised = []
    monkeypatch.setattr(fused, "advise_large_pages", lambda *call: advised.append(call))
    small, large = new_tensor([3, 5], "int32"), new_tensor([1024, 1024], "int32")
    assert (small.shape, large.shape) == ([3, 5], [1024, 1024]) and small.dtype == large.dtype == paddle.int32
    assert advised == [(large.data_ptr(), 4 << 20)]


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int16", "int32"])
def test_bytes_of_each_type_are_right(dtype, monkeypatch: pytest.MonkeyPatch):
    advised = []
    monkeypatch.setattr(fused, "LARGE", 0)
    monkeypatch.setattr(fused, "advise_large_pages", lambda *call: advised.append(call))
    tensor = new_tensor([7], dtype)
    assert advised == [(tensor.data_ptr(), 7 * tensor.element_size())]
