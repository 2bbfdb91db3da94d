"""Bits that fall and scales that become fixed, of a model; for runs see test_recipe_schedule.py."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn

from lowbit.nn.calibration import calibrate
from lowbit.nn.convert import prepare
from lowbit.nn.scale_schedule import fix_scales, set_bits, unfix_scales
from lowbit.recipe import make_recipe

W2A4 = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int4", "scaling": "fixed", "observer": "mse"},
                "weight": {"grid": "int2-narrow", "granularity": "N", "scaling": "learned"},
            }
        },
        {"match": {"index": -1}, "forward": {"weight": {"grid": "int8"}, "input": {"grid": "int8"}}},
    ],
    "calibration": {"steps": 1},
    "progressive": [{"bits": 6, "epochs": 1}, {"bits": 3, "epochs": 1}],
}


def _grids(net: nn.Layer) -> list[str]:
    return [str(q.grid()) for layer in net for q in (layer.input_quantizer, layer.weight_quantizer)]


def test_bits_are_those_of_the_stage_or_more():
    paddle.seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), paddle.randn([16, 8])
    prepare(net, make_recipe(W2A4))
    calibrate(net, [x])
    ranges = {}
    for bits, expected in (
        (6, ["int6", "int6-narrow"]),
        (3, ["int4", "int3-narrow"]),
        (0, ["int4", "int2-narrow"]),
    ):
        assert set_bits(net, bits) == {6: 2, 3: 2, 0: 1}[bits]
        calibrate(net, [x])
        assert _grids(net) == [*expected, "int8", "int8"]
        ranges[bits] = float(net[0].input_quantizer.scale()) * net[0].input_quantizer.grid().highest
    assert ranges[6] > ranges[3]  # the best range of more bits clips less
    assert ranges[3] == ranges[0]  # the same bits, found anew


def test_scales_are_fixed_at_the_mean_of_the_batches():
    paddle.seed(0)
    rule = {"input": {"grid": "int8", "granularity": "N"}, "weight": {"grid": "int8", "granularity": "N"}}
    net = prepare(
        nn.Sequential(nn.Linear(8, 4)), make_recipe({"rules": [{"forward": rule}], "fix_scales": 1})
    )
    batches = [paddle.randn([4, 8]) * scale for scale in (1, 3)]
    assert net[0].input_quantizer.scale() is None
    assert fix_scales(net, batches) == 1
    expected = np.mean([float(x.abs().max()) for x in batches]) / 127
    np.testing.assert_allclose(float(net[0].input_quantizer.scale()), expected, rtol=1e-6)
    fixed = net.eval()(batches[0] / 100).numpy()
    assert not np.allclose(
        fixed, nn.functional.linear(batches[0] / 100, net[0].weight, net[0].bias).numpy(), atol=1e-3
    )


def test_a_fixed_scale_is_within_the_bound_of_pact():
    paddle.seed(0)
    rule = {"input": {"grid": "int8", "clip": "pact"}, "weight": {"grid": "int8", "granularity": "N"}}
    net = prepare(
        nn.Sequential(nn.Linear(8, 4)), make_recipe({"rules": [{"forward": rule}], "fix_scales": 1})
    )
    x = paddle.randn([4, 8])
    net(x)
    net[0].input_quantizer.alpha.value.set_value(paddle.full([1], 0.5))
    before = net.eval()(x).numpy()
    assert fix_scales(net, [x]) == 1
    np.testing.assert_allclose(float(net[0].input_quantizer.scale()), 0.5 / 127, rtol=1e-6)
    np.testing.assert_allclose(net.eval()(x).numpy(), before, rtol=1e-5, atol=1e-6)


class _WithTrainingHead(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.body(x) + self.head(x) if self.training else self.body(x)


def test_layers_that_evaluation_does_not_run_stay_dynamic():
    rule = {"input": {"grid": "int8"}, "weight": {"grid": "int8"}}
    net = prepare(_WithTrainingHead(), make_recipe({"rules": [{"forward": rule}], "fix_scales": 1}))
    x = paddle.randn([4, 8])
    assert fix_scales(net, [x]) == 1
    assert net.body.input_quantizer.has_fixed_scale and not net.head.input_quantizer.has_fixed_scale
    net.train()(x).sum().backward()
    assert unfix_scales(net) == 1 and not net.body.input_quantizer.has_fixed_scale
    assert unfix_scales(net) == 0
