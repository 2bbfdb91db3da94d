"""A Paddle program in the legacy format: traced, and taken apart into operators."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.base import core
from paddle.pir_utils import OldIrGuard

from lowbit.errors import LowbitError
from lowbit.nn.eval_mode import cause

Attribute = bool | int | float | str | list[int] | list[float]

_KINDS = core.VarDesc.VarType
_ELEMENTS = {"float32": _KINDS.FP32, "int8": _KINDS.INT8, "uint8": _KINDS.UINT8}
_NUMBERS = {"float32": 5, "int8": 21}  # of element types in a parameter file
# The wider array types come in only as parameters of operators that were traced.
_NUMBERS |= {"bool": 0, "int32": 2, "int64": 3, "float64": 6, "uint8": 20}


@dataclass
class ProgramOp:
    """One operator: what it reads and writes by role, and its attributes.

    `traced` is Paddle's own description of an operator that came out of a trace: its attributes stay.
    """

    kind: str
    inputs: dict[str, list[str]]
    outputs: dict[str, list[str]]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    traced: core.OpDesc | None = None

    @classmethod
    def of(cls, traced: core.OpDesc) -> ProgramOp:
        inputs = {role: traced.input(role) for role in traced.input_names()}
        outputs = {role: traced.output(role) for role in traced.output_names()}
        return cls(traced.type(), inputs, outputs, traced=traced)

    def attribute(self, name: str) -> Attribute:
        return self.attributes[name] if name in self.attributes else self.traced.attr(name)

    @property
    def reads(self) -> list[str]:
        return [name for names in self.inputs.values() for name in names]

    @property
    def writes(self) -> list[str]:
        return [name for names in self.outputs.values() for name in names]


@dataclass(frozen=True)
class Variable:
    """What the program says of a value: its shape (-1: any) and its element type, in Paddle's numbers."""

    shape: list[int]
    kind: core.VarDesc.VarType


@dataclass
class Program:
    """Operators in the order in which they run, the parameters' values, the images' and the answers' names.

    `source` is what traced operators point into: it has to live as long as they do.
    """

    ops: list[ProgramOp]
    variables: dict[str, Variable]
    values: dict[str, np.ndarray]
    input: str
    output: str
    source: core.ProgramDesc

    def new_variable(self, name: str, shape: Iterable[int], kind: str = "float32") -> str:
        while name in self.variables:
            name += "_"
        self.variables[name] = Variable(list(shape), _ELEMENTS[kind])
        return name

    def new_parameter(self, name: str, value: np.ndarray) -> str:
        name = self.new_variable(name, value.shape, str(value.dtype))
        self.values[name] = value
        return name


def write_program(program: Program, prefix: Path) -> None:
    """Write `prefix.pdmodel` and `prefix.pdiparams`, with those parameters only that an operator reads."""
    read = {name for op in program.ops for name in op.reads}
    parameters = {name: value for name, value in program.values.items() if name in read}
    prefix.with_suffix(".pdmodel").write_bytes(_describe(program, parameters))
    with prefix.with_suffix(".pdiparams").open("wb") as file:
        for name in sorted(parameters):  # the order in which Paddle reads them
            file.write(_tensor_bytes(parameters[name]))


def _describe(program: Program, parameters: dict[str, np.ndarray]) -> bytes:
    description = core.ProgramDesc()
    block = description.block(0)
    for name, kind in (("feed", _KINDS.FEED_MINIBATCH), ("fetch", _KINDS.FETCH_LIST)):
        variable = block.var(name.encode())
        variable.set_type(kind)
        variable.set_persistable(True)
    ops = [
        ProgramOp("feed", {"X": ["feed"]}, {"Out": [program.input]}, {"col": 0}),
        *program.ops,
        ProgramOp("fetch", {"X": [program.output]}, {"Out": ["fetch"]}, {"col": 0}),
    ]
    for name in dict.fromkeys(name for op in ops for name in op.reads + op.writes):
        if name not in ("feed", "fetch"):
            known = program.variables[name]
            variable = block.var(name.encode())
            variable.set_type(_KINDS.DENSE_TENSOR)
            variable.set_shape(known.shape)
            variable.set_dtype(known.kind)
            variable.set_persistable(name in parameters)
    for op in ops:
        _append(block, op)
    return description.serialize_to_string()


def _append(block: core.BlockDesc, op: ProgramOp) -> None:
    described = block.append_op()
    if op.traced is not None:
        described.copy_from(op.traced)
    described.set_type(op.kind)
    for role, names in op.inputs.items():
        described.set_input(role, names)
    for role, names in op.outputs.items():
        described.set_output(role, names)
    for name, value in op.attributes.items():
        # Paddle looks for each attribute in one type, which it does not guess from Python's.
        kind = type(value[0]) if isinstance(value, list) else type(value)
        word = {bool: "bool", int: "int32", float: "float32", str: "str"}[kind]
        getattr(described, f"_set_{word}{'s' if isinstance(value, list) else ''}_attr")(name, value)


def _tensor_bytes(value: np.ndarray) -> bytes:
    """One tensor as `params_file.py` describes the file: a header, the type and the dimensions, elements."""
    description = b"\x08" + _varint(_NUMBERS[value.dtype.name])
    for size in value.shape:
        description += b"\x10" + _varint(size)
    return struct.pack("<IQIi", 0, 0, 0, len(description)) + description + value.tobytes()


def _varint(number: int) -> bytes:
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


# From a model to a program in Paddle's old format, with its quantized layers marked.


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
    ops = _needed([ProgramOp.of(block.op(index)) for index in range(block.op_size())], output)
    return Program(ops, variables, values, "x", output, description)


def _needed(ops: list[ProgramOp], output: str) -> list[ProgramOp]:
    """Those operators that the output depends on."""
    wanted, kept = {output}, []
    for op in reversed(ops):
        if wanted & set(op.writes):
            wanted |= set(op.reads)
            kept.append(op)
    return kept[::-1]
