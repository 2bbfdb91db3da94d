"""From a model to a program in Paddle's old format, in which its quantized layers can be found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.pir_utils import OldIrGuard

from lowbit.deploy.paddle_int8.program import Op, Program, Variable
from lowbit.errors import LowbitError
from lowbit.layers.paddle_errors import cause


@dataclass(frozen=True)
class Traced:
    """The program, and by the name of its weight every layer whose product is to become one of integers."""

    program: Program
    layers: dict[str, nn.Layer]


def trace(model: nn.Layer, layers: list[nn.Layer], image_shape: tuple[int, int, int]) -> Traced:
    """The model's program for batches of any size; of `layers` only the product, without scales and bias.

    All other layers are in it as they are.

    trace(model, [model.conv1], (3, 224, 224)).program.ops
    """
    spec = paddle.static.InputSpec([None, *image_shape], "float32", "x")
    try:
        with OldIrGuard(), _forwards_kept(model):
            for layer in layers:
                layer.forward = _product_of(layer)
            forward = paddle.jit.to_static(model.forward, input_spec=[spec], full_graph=True)
            program = _program(forward.concrete_program)
            return Traced(program, {layer.weight.name: layer for layer in layers})
    except LowbitError:
        raise
    except Exception as error:  # Paddle translates the user's Python; whatever it meets there comes out
        raise LowbitError(
            f"Paddle could not translate {type(model).__name__}.forward into a program of its old format, "
            f"which its int8 needs: {cause(error)}"
        ) from error


@contextmanager
def _forwards_kept(model: nn.Layer) -> Iterator[None]:
    """Put back every layer's forward: Paddle leaves translated ones behind, too."""
    before = [(layer, vars(layer).get("forward")) for layer in model.sublayers(include_self=True)]
    try:
        yield
    finally:
        for layer, forward in before:
            vars(layer).pop("forward", None)
            if forward is not None:
                layer.forward = forward


def _product_of(layer: nn.Layer) -> Callable[[Tensor], Tensor]:
    @paddle.jit.not_to_static
    def forward(x: Tensor) -> Tensor:
        return layer.product(x, layer.weight, None)

    return forward


def _program(concrete: paddle.jit.dy2static.program_translator.ConcreteProgram) -> Program:
    description = concrete.main_program.desc
    if description.num_blocks() != 1:
        raise LowbitError("forward has a loop or a condition on a tensor, which the int8 form cannot have")
    block = description.block(0)
    if any(block.op(index).type() == "pad" for index in range(block.op_size())):
        raise LowbitError(
            "forward pads channels, and oneDNN's `pad` corrupts memory (Paddle 3.3): pad with paddle.concat"
        )
    values = {parameter.name: np.ascontiguousarray(parameter.numpy()) for parameter in concrete.parameters}
    output = concrete.outputs[0].name
    variables = {
        variable.name(): Variable(list(variable.shape()), variable.dtype())
        for variable in block.all_vars()
        if variable.type() == paddle.base.core.VarDesc.VarType.DENSE_TENSOR
    }
    ops = _needed([Op.of(block.op(index)) for index in range(block.op_size())], output)
    return Program(ops, variables, values, "x", output, description)


def _needed(ops: list[Op], output: str) -> list[Op]:
    """Those operators that the output depends on."""
    wanted, kept = {output}, []
    for op in reversed(ops):
        if wanted & set(op.writes):
            wanted |= set(op.reads)
            kept.append(op)
    return kept[::-1]
