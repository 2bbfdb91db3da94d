from __future__ import annotations

import itertools

import paddle.distributed as dist
import pytest
from paddle import nn

from lowbit.nn.qt_autograd import RoundingRNG, seed_rounding

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
