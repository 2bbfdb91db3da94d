from __future__ import annotations

import pytest

from lowbit.bench.sides import PADDLE, RECIPES, Case, step_sides


@pytest.mark.parametrize("model", ["resnet20", "mobilenet_v3_small"])
def test_every_side_trains_a_step(model):
    sides = step_sides(Case(model, 32, 4))
    assert list(sides)[:2] == [PADDLE, "lowbit fp32"] and set(RECIPES) <= set(sides)
    for step in sides.values():
        step()
