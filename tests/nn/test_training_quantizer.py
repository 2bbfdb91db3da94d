from __future__ import annotations

import paddle
import pytest

from lowbit.nn.quantizer import TrainingQuantizer
from lowbit.recipe.spec import TensorSpec


@pytest.mark.parametrize(
    "settings", [{}, {"scaling": "learned"}, {"scaling": "moving_average"}, {"rotation": "hadamard(4)"}]
)
def test_nothing_of_an_operand_has_a_gradient(settings):
    quantizer = TrainingQuantizer(TensorSpec(grid="int4", **settings), "NC", "input", shape=[1, 4])
    x = paddle.randn([3, 4])
    x.stop_gradient = False
    operand = quantizer.operand(quantizer.trained(x))
    assert operand.data.stop_gradient
    assert operand.scale is None or operand.scale.stop_gradient
