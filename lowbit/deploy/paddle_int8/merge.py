"""Merge into a convolution of integers what follows it: batch norm, bias, shortcut, activation, next grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from lowbit.deploy.paddle_int8.integer_conv import LOWEST_HARD_SWISH, Activation, IntegerConv, Node
from lowbit.deploy.paddle_int8.program import Op, Program
from lowbit.nn import DeployedOperand


def merge(program: Program, nodes: list[Node]) -> list[Node]:
    """The nodes with everything merged that leaves what is computed as it is, but for the rounding of floats.

    A value that is used in two places is never merged away.
    """
    nodes = list(nodes)
    for step in (_norm, _bias, _shortcut, _activation):
        nodes = _merge_followers(program, nodes, step)
    _put_on_next_grid(program, nodes)
    return nodes


def _merge_followers(program: Program, nodes: list[Node], step: Callable[..., Any]) -> list[Node]:
    """Let `step(program, conv, follower)` take in the only reader of each convolution's output.

    The convolution moves to the follower's place, where everything that either of them reads is there.
    """
    readers = _readers(program, nodes)
    taken: dict[int, IntegerConv] = {}  # by the follower's place
    for node in nodes:
        if isinstance(node, IntegerConv) and len(readers[node.output]) == 1:
            (place,) = readers[node.output]
            free = place >= 0 and place not in taken and isinstance(nodes[place], Op)
            if free and step(program, node, nodes[place]):
                taken[place] = node
    moved = {id(node) for node in taken.values()}
    placed = (taken.get(place, node) for place, node in enumerate(nodes))
    return [node for place, node in enumerate(placed) if place in taken or id(node) not in moved]


def _readers(program: Program, nodes: list[Node]) -> dict[str, list[int]]:
    """Who reads each value, by place; -1 stands for whoever asks for the program's output."""
    readers = defaultdict(list)
    for place, node in enumerate(nodes):
        for name in node.reads:
            readers[name].append(place)
    readers[program.output].append(-1)
    return readers


def _norm(program: Program, conv: IntegerConv, op: Op) -> bool:
    if op.kind != "batch_norm" or op.attribute("data_layout") != "NCHW":
        return False
    if not op.attribute("is_test") or op.attribute("trainable_statistics"):  # the statistics of the batch
        return False
    roles = ("Scale", "Bias", "Mean", "Variance")
    gain, shift, mean, variance = (program.values[op.inputs[role][0]].astype(np.float64) for role in roles)
    gain = gain / np.sqrt(variance + op.attribute("epsilon"))
    conv.scale, conv.bias = conv.scale * gain, (conv.bias - mean) * gain + shift
    conv.output = op.outputs["Y"][0]
    return True


def _bias(program: Program, conv: IntegerConv, op: Op) -> bool:
    """A number per channel, added as [C] along axis 1 or as [1, C, 1, 1]."""
    if op.kind != "elementwise_add" or op.inputs["X"] != [conv.output]:
        return False
    value = program.values.get(op.inputs["Y"][0])
    channels = len(conv.bias)
    if value is None or value.size != channels or op.attribute("axis") not in (-1, 1):
        return False
    if value.shape == (channels,) and op.attribute("axis") != 1:
        return False
    if value.ndim > 1 and value.shape not in ((1, channels, 1, 1), (channels, 1, 1)):
        return False
    conv.bias = conv.bias + value.reshape(-1)
    conv.output = op.outputs["Out"][0]
    return True


def _shortcut(program: Program, conv: IntegerConv, op: Op) -> bool:
    if op.kind != "elementwise_add" or conv.residual is not None or conv.activation.name:
        return False
    others = [name for name in (*op.inputs["X"], *op.inputs["Y"]) if name != conv.output]
    if len(others) != 1 or others[0] in program.values:
        return False
    if program.variables[others[0]].shape != program.variables[conv.output].shape:
        return False
    conv.residual, conv.output = others[0], op.outputs["Out"][0]
    return True


def _activation(program: Program, conv: IntegerConv, op: Op) -> bool:
    known = {
        "relu": lambda: Activation("relu"),
        "relu6": lambda: Activation("relu6", 0.0, float(op.attribute("threshold"))),
        "hard_swish": lambda: _hard_swish(op),
    }
    activation = known[op.kind]() if op.kind in known else None
    if activation is None:
        return False
    conv.activation, conv.output = activation, op.outputs["Out"][0]
    return True


def _hard_swish(op: Op) -> Activation | None:
    usual = (op.attribute("threshold"), op.attribute("scale"), op.attribute("offset")) == (6.0, 6.0, 3.0)
    return Activation("hard_swish", 1 / 6, 0.5) if usual else None


def _put_on_next_grid(program: Program, nodes: list[Node]) -> None:
    """Let a convolution keep the bounds of the grid that comes next, and write integers where it can.

    It can where only convolutions read them, all on the same grid. With a shortcut added it writes floats,
    as the shortcut is.
    """
    readers = _readers(program, nodes)
    for conv in nodes:
        if not isinstance(conv, IntegerConv):
            continue
        following = [nodes[place] if place >= 0 else None for place in readers[conv.output]]
        if not all(isinstance(node, IntegerConv) and node.residual != conv.output for node in following):
            continue
        operands = [node.operand for node in following]
        if not all(same_operand(operand, operands[0]) for operand in operands):
            continue
        bounded = _bounded(conv.activation, operands[0])
        if bounded is not None:
            conv.activation = bounded
            conv.output_operand = operands[0] if conv.residual is None else None


def same_operand(a: DeployedOperand, b: DeployedOperand) -> bool:
    """Whether the same values become the same integers."""
    return (a.lowest, a.highest, float(a.scale)) == (b.lowest, b.highest, float(b.scale))


def _bounded(activation: Activation, operand: DeployedOperand) -> Activation | None:
    """The activation with the grid's bounds in it; None where one function cannot do both.

    oneDNN writes 0…255 after relu and relu6, else -128…127; the rest of the bounds must come from the
    function: relu6 and clip have two.
    """
    lowest, highest = (float(bound * operand.scale) for bound in (operand.lowest, operand.highest))
    if activation.name in ("relu", "relu6"):
        if operand.lowest > 0:
            return None
        top = min(highest, activation.beta) if activation.name == "relu6" else highest
        return Activation("relu6", 0.0, top)
    if operand.highest > 127:
        return None
    if not activation.name:
        return Activation("clip", lowest, highest)
    above_all = operand.lowest == -128 or lowest <= LOWEST_HARD_SWISH
    return activation if operand.highest == 127 and above_all else None
