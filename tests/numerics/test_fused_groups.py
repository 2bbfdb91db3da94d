"""Ranges of one tensor for several granularities: those of the tensor, read once."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.quantization import QuantizeKernels
from lowbit.numerics import Stochastic, parse_grid, parse_observer, scale_from_range
from lowbit.numerics.fused import levels
from lowbit.numerics.fused_groups import ChannelRanges, mse_ranges, to_bytes, to_dynamic_bytes
from lowbit.numerics.rounding import log_round

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


@pytest.mark.parametrize("observer", ["minmax", "mse", "mse(3)", "percentile(99.0)"])
@pytest.mark.parametrize("axes", [(2, 3), (1, 2, 3), (0, 2, 3), (0, 1, 2, 3), (1,), (0, 1)])
def test_an_observer_gives_the_same_bits_with_known_ranges(observer, axes):
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((3, 4, 16, 9)).astype(np.float32))
    grid, observer = parse_grid("int4"), parse_observer(observer)
    known = ChannelRanges(x)
    for _ in range(2):  # nothing writes over what is known
        found = observer.range(x, grid, axes, known=known)
        np.testing.assert_array_equal(found.numpy(), observer.range(x, grid, axes).numpy())


@pytest.mark.parametrize(("pixels", "reads"), [(10, 0), (16, 1)])
def test_the_tensor_is_read_once(pixels, reads, monkeypatch):
    """Where images are large; of small ones, ranges of all channels take as long."""
    x, seen = paddle.randn([3, 4, pixels, pixels]), []
    inner = QuantizeKernels.ranges
    monkeypatch.setattr(
        QuantizeKernels,
        "ranges",
        lambda self, *a, **k: seen.append(a[0] == x.data_ptr()) or inner(self, *a, **k),
    )
    known = ChannelRanges(x)
    for axes in [(1, 2, 3), (0, 2, 3), (2, 3), (0, 1, 2, 3)]:
        found = known.of(axes)
        assert (found is None) == (not reads)
    assert sum(seen) == reads


@pytest.mark.parametrize("shape", [[4, 5], [2, 3, 200], [0, 2, 16, 16]])
def test_other_tensors_have_none(shape):
    assert ChannelRanges(paddle.ones(shape)).of((2, 3)) is None


@pytest.mark.parametrize("grid", ["int4", "int8-narrow", "uint8", "log4"])
@pytest.mark.parametrize("rounding", [None, Stochastic(seed=1, step=2, layer=3, first=4)])
@pytest.mark.parametrize("observer", ["minmax", "clip_ratio(0.3)", "mse", "mse(3)"])
@pytest.mark.parametrize("axes", [(1, 2, 3), (0, 2, 3), (0, 1, 2, 3), (2, 3), (1,)])
@pytest.mark.parametrize("has_known", [False, True])
def test_one_call_gives_the_bits_of_three(grid, rounding, observer, axes, has_known):
    values = np.random.default_rng(0).standard_normal((3, 4, 16, 9)).astype(np.float32)
    values[1, 2, 3, 4] = np.nan if axes == (2, 3) else 5
    x, grid, observer = paddle.to_tensor(values), parse_grid(grid), parse_observer(observer)
    scale = scale_from_range(observer.range(x, grid, axes), grid)
    q, broken = to_bytes(x, scale, grid, [rounding])
    known = ChannelRanges(x) if has_known else None
    if has_known:
        np.testing.assert_array_equal(
            observer.range(x, grid, axes, known=known).numpy(), observer.range(x, grid, axes).numpy()
        )
    found = to_dynamic_bytes(
        x, grid, axes, [rounding], turns=observer.turns, ratio=observer.ratio, known=known
    )
    np.testing.assert_array_equal(found[0].numpy(), q.numpy())
    np.testing.assert_array_equal(found[1].numpy(), scale.numpy())
    assert found[2] == broken


@pytest.mark.parametrize("exponent", [-120, -45, -40, -20, 0, 20, 60, 62])
def test_one_scale_divides_to_the_last_bit(exponent):
    """Kernels may divide by a reciprocal; quotients on the edge of two powers of two tell the difference."""
    grid, random = parse_grid("log4"), np.random.default_rng(exponent + 200)
    scale = np.float32(random.uniform(1, 2) * 2.0**exponent)
    exact = np.concatenate([random.uniform(0, 64, 4096), 2.0 ** random.integers(-3, 6, 4096), [np.inf, 0]])
    x = (exact * random.choice([-1, 1], exact.size)).astype(np.float32) * scale
    rounding = Stochastic(seed=1, step=2, layer=3)
    given = paddle.to_tensor(x.reshape(1, 2, -1))
    q, _ = to_bytes(given, paddle.full([1, 1, 1], scale), grid, [rounding])
    slow = log_round(paddle.clip(paddle.to_tensor(x / scale), -64.0, 64.0), rounding)
    np.testing.assert_array_equal(q.numpy().ravel(), slow.numpy().astype(np.int8))


def test_kernels_refuse_grids_without_every_integer():
    """They would round to integers that are not on the grid: the operators have to do it."""
    x, grid = paddle.randn([2, 4, 8]), parse_grid("int2-midrise")
    assert to_bytes(x, paddle.ones([1, 1, 1]), grid, [None]) is None
    assert to_dynamic_bytes(x, grid, (0, 1, 2)) is None
    assert mse_ranges(x, grid, (0, 1, 2), turns=1) is None
    for word in ("int2-midrise", "log4"):
        with pytest.raises(ValueError, match="does not have every integer"):
            levels(parse_grid(word))
