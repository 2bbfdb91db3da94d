"""Ranges of one tensor for several granularities: those of the tensor, read once."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.quantization import QuantizeKernels
from lowbit.numerics import parse_grid, parse_observer
from lowbit.numerics.fused_groups import ChannelRanges

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
