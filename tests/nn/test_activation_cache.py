"""Recorded outputs in the place of computing them again."""

from __future__ import annotations

import paddle
import pytest
from paddle import nn

from lowbit.nn.activation_cache import recording, replaying
from lowbit.nn.inspect import layers_by_name


class Twice(nn.Layer):
    """`shared` is called before and after `middle`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(4, 4), nn.Linear(4, 4)
        self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.shared(self.middle(self.shared(self.first(x)))))


@pytest.mark.parametrize(
    ("until", "skipped"),
    [("first", set()), ("shared", {"first"}), ("middle", {"first"}), ("last", {"first", "shared", "middle"})],
)
def test_what_came_before_is_not_computed_and_what_changed_is(until, skipped):
    model, x = Twice(), paddle.randn([3, 4])
    layers = layers_by_name(model)
    with recording(layers) as seen:
        model(x)
    layers[until].weight.set_value(layers[until].weight * 2)
    expected = model(x).numpy()
    with replaying(layers, seen, until=until):
        assert {name for name, layer in layers.items() if "forward" in vars(layer)} == skipped  # not computed
        assert (model(x).numpy() == expected).all()
    assert not any("forward" in vars(layer) for layer in layers.values())
    assert (model(x).numpy() == expected).all()
