from __future__ import annotations

import numpy as np
import pytest

from lowbit.deploy.paddle_int8.integer_conv import Activation, IntegerConv, place_integer_convs
from lowbit.deploy.paddle_int8.merge import _bounded, merge
from lowbit.deploy.paddle_int8.program import trace
from lowbit.nn import DeployedOperand, is_quantized
from tests.support.exports import SHAPE
from tests.support.int8_models import quantized


def test_what_is_merged_where(every_kind):
    model = quantized(every_kind)
    traced = trace(model, [layer for layer in model.sublayers() if is_quantized(layer)], SHAPE)
    nodes = merge(traced.program, place_integer_convs(traced.program, traced.layers))
    convs = {node.name: node for node in nodes if isinstance(node, IntegerConv)}
    kinds = [node.kind for node in nodes if not isinstance(node, IntegerConv)]
    assert "batch_norm" not in kinds and "elementwise_add" not in kinds
    assert kinds.count("relu") == 1  # of the Linear layer, whose product comes out as 1x1 images
    assert convs["first"].activation.name == "relu"
    assert convs["first"].output_operand is None  # a pool is next
    assert convs["last"].residual is not None and convs["reflecting"].residual is not None


@pytest.mark.parametrize("activation", ["", "relu", "relu6", "hard_swish"])
@pytest.mark.parametrize(("lowest", "highest"), [(-128, 127), (-127, 127), (-20, 100), (0, 255), (0, 15)])
def test_a_bounded_activation_gives_the_integers_of_both_steps(activation, lowest, highest):
    """Activation, then the next grid, against what oneDNN does: the function, then rounded into its type."""
    scale = np.float32(0.05)
    operand = DeployedOperand(lowest=lowest, highest=highest, bits=8, signed=lowest < 0, scale=scale)
    given = Activation(activation, *{"relu6": (0.0, 6.0)}.get(activation, (0.0, 0.0)))
    bounded = _bounded(given, operand)
    if bounded is None:
        return
    x = np.linspace(-30, 30, 4001, dtype=np.float32)
    type_lowest, type_highest = (0, 255) if bounded.name in ("relu", "relu6") else (-128, 127)
    found = np.clip(np.rint(_apply(bounded, x) / scale), type_lowest, type_highest)
    expected = np.clip(np.rint(_apply(given, x) / scale), lowest, highest)
    np.testing.assert_array_equal(found, expected)


def test_relu_is_always_bounded():
    operand = DeployedOperand(lowest=-127, highest=127, bits=8, signed=True, scale=np.float32(1))
    assert _bounded(Activation("relu"), operand) == Activation("relu6", 0.0, 127.0)


def _apply(activation: Activation, x: np.ndarray) -> np.ndarray:
    functions = {
        "": lambda: x,
        "relu": lambda: np.maximum(x, 0),
        "relu6": lambda: np.clip(x, activation.alpha, activation.beta),
        "clip": lambda: np.clip(x, activation.alpha, activation.beta),
        "hard_swish": lambda: x * np.clip(x + 3, 0, 6) / 6,
    }
    return functions[activation.name]()
