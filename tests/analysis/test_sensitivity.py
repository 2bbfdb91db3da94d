"""Sums over batches, against the slow way: every model run in full, nothing replayed."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from lowbit.analysis.sensitivity import Sums, add_batch, recording, replaying
from lowbit.nn.convert import quantized_layers, quantizing_only
from lowbit.nn.inspect import layers_by_name


def _slow(model, batches, names) -> tuple[float, int, float]:
    loss, hits, divergence = 0.0, 0, 0.0
    for batch in batches:
        with quantizing_only(model, ()):
            full = F.softmax(model(paddle.to_tensor(batch.images)).astype("float64")).numpy()
        with quantizing_only(model, names):
            logits = model(paddle.to_tensor(batch.images))
        moved = F.softmax(logits.astype("float64")).numpy()
        divergence += float((full * np.log(full / moved)).sum())
        loss += float(F.cross_entropy(logits, paddle.to_tensor(batch.labels), reduction="sum"))
        hits += int((logits.numpy().argmax(axis=1) == batch.labels).sum())
    return loss, hits, divergence


def test_sums_are_those_of_running_every_model(model, loader):
    sums, steps = Sums(), []
    for batch in loader.batches:
        add_batch(model, batch, sums, lambda: steps.append(1))
    names = list(quantized_layers(model))
    assert len(steps) == 3 * (2 * len(names) + 2)
    cases = {"full": ((), sums.full), "quantized": (names, sums.quantized)}
    cases |= {f"only {name}": ({name}, sums.only[name]) for name in names}
    cases |= {f"without {name}": (set(names) - {name}, sums.without[name]) for name in names}
    for case, (quantized, found) in cases.items():
        loss, hits, divergence = _slow(model, loader.batches, quantized)
        assert found.loss == pytest.approx(loss, rel=1e-6), case
        assert found.hits == hits, case
        assert found.divergence == pytest.approx(divergence, rel=1e-4, abs=1e-9), case
    assert len({round(found.loss, 4) for _, found in cases.values()}) > len(names)


def test_a_loss_that_is_no_number_is_the_worst_of_all(model, loader):
    model.late.weight_quantizer.step.value.set_value(model.late.weight_quantizer.step.value * np.nan)
    sums = Sums()
    add_batch(model, loader.batches[0], sums)
    assert max(sums.only, key=lambda name: sums.only[name].loss) == "late"
    assert max(sums.only, key=lambda name: sums.only[name].divergence) == "late"
    assert Sums.of(sums.values()) == sums


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
