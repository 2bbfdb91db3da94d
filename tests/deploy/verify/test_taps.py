from __future__ import annotations

import numpy as np
import paddle
from paddle import nn

from lowbit.deploy.verify.agreement import model_answer
from lowbit.deploy.verify.layer_differences import integers_read, layers_in_order
from lowbit.nn import calibrate, deployed_input, eval_mode, prepare
from lowbit.recipe import make_recipe
from tests.support.small_net import LAYERS, images, small_net


def run(model, x, **options):
    layers = layers_in_order(model, x)
    with eval_mode(model), integers_read(layers, **options) as seen:
        return model(paddle.to_tensor(x)).numpy(), seen


def test_the_integers_are_those_of_the_layers_inputs():
    model, x = small_net(), images(3)
    _, seen = run(model, x)
    bounds = deployed_input(model.stem)
    assert list(seen) == LAYERS
    expected = np.clip(np.rint(x / bounds.scale), bounds.lowest, bounds.highest)
    assert np.array_equal(seen["stem"], expected)


def test_reading_changes_nothing_and_leaves_nothing_behind():
    model, x = small_net(), images(3)
    before = model_answer(model)(x)
    assert np.array_equal(run(model, x)[0], before)
    assert np.array_equal(model_answer(model)(x), before)
    assert not any(layer._forward_pre_hooks for layer in model.sublayers())


def test_ones_own_integers_in_their_place_change_nothing():
    model, x = small_net(), images(3)
    logits, seen = run(model, x)
    again, seen_again = run(model, x, instead=seen)
    assert np.array_equal(logits, again)
    assert all(np.array_equal(seen[name], seen_again[name]) for name in LAYERS)


def test_other_integers_concern_only_the_layers_right_after():
    model, x = small_net(), images(3)
    _, seen = run(model, x)
    changed = seen | {"stem": np.clip(seen["stem"] + 40, -128, 127)}
    _, remade = run(model, x, instead=changed)
    assert np.array_equal(remade["stem"], seen["stem"]), "what is read is what came, not what was put there"
    assert not np.array_equal(remade["left"], seen["left"])
    assert np.array_equal(remade["last"], seen["last"]), "left and right were given their old integers"


class _Twice(nn.Layer):
    """Calls in another order than its layers are declared in, one of them twice and one never."""

    def __init__(self):
        super().__init__()
        self.late, self.twice, self.never, self.early = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        return self.late(self.twice(self.twice(self.early(x))))


def test_layers_come_in_the_order_of_their_calls():
    model = prepare(_Twice(), make_recipe({"weight_bits": 8}))
    x = np.ones((2, 4), np.float32)
    calibrate(model, [paddle.to_tensor(x)])
    model.eval()
    assert list(layers_in_order(model, x)) == ["early", "late"]
