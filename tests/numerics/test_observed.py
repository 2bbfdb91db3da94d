"""Observing and quantizing in one call: what a range, a moving average and fake quantization give."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.kernels import kernels, why_missing
from lowbit.numerics import fake_quantize, pact_fake_quantize, parse_grid, parse_scaling, scale_from_range
from lowbit.numerics.fake_quant import usable_bound
from lowbit.numerics.observed import MovingScale, fits, observed_fake_quantize

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
RATE = 0.9


def _state() -> dict[str, paddle.Tensor]:
    """A moving average that no batch has entered."""
    floats = {name: paddle.zeros([1]) for name in ("state", "accum", "range")}
    return floats | {name: paddle.zeros([1], "int64") for name in ("entered", "left_out")}


def _moving(grid: str, alpha: paddle.Tensor | None = None) -> MovingScale:
    return MovingScale(parse_grid(grid), RATE, _state(), alpha)


def _batch(seed: int, scale: float = 1.0) -> paddle.Tensor:
    values = np.random.default_rng(seed).standard_normal((3, 5, 4, 7)) * scale
    return paddle.to_tensor(values.astype(np.float32), stop_gradient=False)


@settings(max_examples=30)
@given(
    grid=st.sampled_from(["int8", "int8-narrow", "int4", "uint8"]),
    alpha=st.sampled_from([None, 0.7, 5.0]),
    seed=st.integers(0, 100),
)
def test_several_batches_are_as_by_one_operator_after_the_other(grid, alpha, seed):
    learned = None if alpha is None else paddle.to_tensor([alpha], stop_gradient=False)
    moving, average = _moving(grid, learned), parse_scaling(f"moving_average({RATE})").new_state()
    for number in range(3):
        found, expected = [], []
        for results, in_one_call in ((found, True), (expected, False)):
            x = _batch(seed + number, 1 + number)
            if learned is not None:
                learned.clear_grad()
            if in_one_call:
                y, scale = observed_fake_quantize(x, moving)
            else:
                signed = moving.grid.signed or learned is None
                range_ = (x.detach().abs() if signed else x.detach()).max().reshape([1])
                range_ = range_ if learned is None else paddle.minimum(range_, usable_bound(learned.detach()))
                average.update(range_)
                scale = scale_from_range(average.range(), moving.grid)
                y = (
                    fake_quantize(x, scale, moving.grid)
                    if learned is None
                    else pact_fake_quantize(x, learned, scale, moving.grid)
                )
            (y * _batch(7)).sum().backward()
            results += [y.numpy(), scale.numpy().reshape(-1), x.grad.numpy()]
            results += [] if learned is None else [learned.grad.numpy()]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert int(moving.state["entered"]) == 3


def test_what_does_not_fit():
    assert fits(_batch(0))
    assert not fits(_batch(0).transpose([0, 2, 3, 1]))
    assert not fits(paddle.zeros([0, 3]))
    assert not fits(paddle.zeros([3], "float64"))
