"""A noted range is that of the tensor, or it is not taken."""

from __future__ import annotations

import ctypes

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.operands import Operands
from lowbit.layers import prepare
from lowbit.layers.draws import seed_draws
from lowbit.layers.fast_neighbours import fast_neighbours
from lowbit.layers.norm_readers import note_readers
from lowbit.numerics import fused_groups, noted_ranges
from lowbit.recipe import make_recipe

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
PIXELS = (2, 3)


def _noted(shape=(3, 4, 5, 6)) -> paddle.Tensor:
    paddle.seed(0)
    x = paddle.randn(shape)
    noted_ranges.note_ranges(x, x.abs().max(PIXELS, keepdim=True))
    return x


@pytest.mark.parametrize("axes", [(2, 3), (1, 2, 3), (0, 2, 3), (0, 1, 2, 3)])
def test_groups_of_whole_channels_come_from_the_note(axes, monkeypatch):
    x = _noted()
    read = []
    monkeypatch.setattr(
        fused_groups, "noted_ranges", lambda *a: read.append(noted_ranges.noted_ranges(*a)) or read[-1]
    )
    found = fused_groups.ranges(x.detach(), axes)
    assert read[0] is not None
    np.testing.assert_array_equal(found.numpy(), x.abs().max(axes, keepdim=True).numpy())


@pytest.mark.parametrize("pixels", [10, 16])
def test_what_several_ask_for_is_read_once(pixels, monkeypatch):
    """Where images are large; of small ones, ranges of all channels take as long."""
    paddle.seed(0)
    x, seen = paddle.randn([3, 4, pixels, pixels]), []
    inner = Operands.ranges
    monkeypatch.setattr(
        Operands, "ranges", lambda self, *a, **k: seen.append(a[0] == x.data_ptr()) or inner(self, *a, **k)
    )
    with fused_groups.ranges_together(x):
        for axes in [(1, 2, 3), (0, 2, 3), (2, 3), (0, 1, 2, 3)]:
            found = fused_groups.ranges(x.detach(), axes)
            np.testing.assert_array_equal(found.numpy(), x.abs().max(axes, keepdim=True).numpy())
    assert sum(seen) == (1 if pixels > 10 else 4)
    assert noted_ranges.noted_ranges(x, PIXELS) is None


def test_what_was_noted_before_stays_noted():
    x = _noted((3, 4, 16, 16))
    before = noted_ranges.noted_ranges(x, PIXELS)
    with fused_groups.ranges_together(x):
        assert noted_ranges.noted_ranges(x, PIXELS) is before
    assert noted_ranges.noted_ranges(x, PIXELS) is before


@pytest.mark.parametrize("axes", [(), (1,), (0, 1), (1, 2)])
def test_finer_groups_do_not(axes):
    assert noted_ranges.noted_ranges(_noted(), axes) is None


def test_what_was_changed_is_not_believed():
    x = _noted()
    x[2, 3, 4, 5] = 100.0
    assert noted_ranges.noted_ranges(x, PIXELS) is None


def test_nor_what_was_changed_where_paddle_does_not_count_it():
    """As when gradients are added up in place."""
    x = _noted()
    values = (ctypes.c_float * 360).from_address(x.data_ptr())
    for place in range(360):
        values[place] += 1.0
    assert noted_ranges.noted_ranges(x, PIXELS) is None


def test_nor_another_shape_at_its_address():
    x = _noted()
    assert noted_ranges.noted_ranges(x.reshape([4, 3, 5, 6]), PIXELS) is None


def test_zeros_are_not_noted_and_notes_are_few():
    x = paddle.zeros([2, 2, 2, 2])
    noted_ranges.note_ranges(x, x.max(PIXELS, keepdim=True))
    assert noted_ranges.noted_ranges(x, PIXELS) is None
    kept = [_noted() for _ in range(20)]
    assert noted_ranges.noted_ranges(kept[-1], PIXELS) is not None
    assert noted_ranges.noted_ranges(kept[0], PIXELS) is None


def test_a_training_is_the_same_with_and_without(monkeypatch):
    """Forward and backward, in a net where gradients are added up at a fork."""

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.LayerList([nn.Conv2D(3 if i == 0 else 4, 4, 3, padding=1) for i in range(4)])
            self.norms = nn.LayerList([nn.BatchNorm2D(4) for _ in range(4)])

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
                y = conv(x)
                # The second one's product is read twice: its gradient is a sum
                x = F.relu(norm(y) + y * 0.5 if i == 1 else norm(y))
            return x

    def losses() -> list[float]:
        paddle.seed(0)
        model, images = Net(), paddle.randn([4, 3, 9, 9])
        note_readers(model, images)
        whole, random = {"grid": "int8"}, {"rounding": "stochastic"}
        by_n, by_c = ({**whole, "granularity": letter} for letter in "NC")
        rule = {
            "forward": {"input": whole, "weight": by_n},
            "grad_input": {"grad_output": by_n | random, "weight": by_c},
            "grad_weight": {"grad_output": by_c | random, "input": whole},
        }
        prepare(model, make_recipe({"rules": [rule]}))
        seed_draws(model, 0)
        optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
        found = []
        for _ in range(3):
            with fast_neighbours():
                loss = model(images).square().mean()
                loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            found.append(float(loss))
        return found

    used = []
    monkeypatch.setattr(
        fused_groups, "noted_ranges", lambda *a: used.append(noted_ranges.noted_ranges(*a)) or used[-1]
    )
    noted = losses()
    # In every step inputs of three layers, and of gradients one of the first layer, two of the last two; what
    # comes to the second one has changed on its way.
    assert sum(found is not None for found in used) == 3 * (3 + 1 + 2 * 2)
    monkeypatch.setattr(fused_groups, "noted_ranges", lambda *a: None)
    assert losses() == noted
