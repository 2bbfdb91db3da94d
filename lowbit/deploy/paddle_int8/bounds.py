"""What can be said of a value's range without running the program."""

from __future__ import annotations

import math

from lowbit.deploy.paddle_int8.integer_conv import IntegerConv, Node

LOWEST_HARD_SWISH = -0.375
_OF_OPS = {"relu": (0.0, math.inf), "sigmoid": (0.0, 1.0), "hard_sigmoid": (0.0, 1.0)}
_OF_OPS |= {"hard_swish": (LOWEST_HARD_SWISH, math.inf)}
# They give values of their input, means of them, or zeros.
_OF_INPUT = {"pool2d", "reshape2", "flatten_contiguous_range", "transpose2", "squeeze2", "dropout"}

Bounds = tuple[float, float]


def value_bounds(nodes: list[Node]) -> dict[str, Bounds]:
    """The values that are known to have bounds: (lowest, highest), by name.

    A bound that holds anyway need not be clipped to.
    """
    known: dict[str, Bounds] = {}
    for node in nodes:
        if isinstance(node, IntegerConv):
            if (bounds := _of_activation(node)) is not None:
                known[node.output] = bounds
        elif node.kind in _OF_OPS:
            known[node.outputs["Out"][0]] = _OF_OPS[node.kind]
        elif node.kind in _OF_INPUT and node.inputs["X"][0] in known:
            lowest, highest = known[node.inputs["X"][0]]
            known[node.outputs["Out"][0]] = min(lowest, 0.0), max(highest, 0.0)
    return known


def _of_activation(conv: IntegerConv) -> Bounds | None:
    activation = conv.activation
    if activation.name in ("relu6", "clip"):
        return activation.alpha, activation.beta
    return _OF_OPS.get(activation.name)
