"""Which function turns which Paddle operator into ONNX's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.deploy.onnx.graph import BatchSize, Graph
from lowbit.errors import LowbitError

# A tensor's name, the names of a list of tensors, or a tuple with one of these for each result.
Result = str | list[str] | tuple[str, ...]


@dataclass(frozen=True)
class Op:
    """An operator of a Paddle program, its inputs already in the graph."""

    name: str
    attributes: dict[str, Any]
    inputs: Sequence[Any]  # a tensor's name, a list of names, or None
    shapes: list[list[int]]  # of the results; -1 where only known at run time
    type: str = "float32"  # of the first result

    @property
    def shape(self) -> list[int]:
        """The first result's."""
        return self.shapes[0]

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    def refuse(self, what: str) -> LowbitError:
        """An error about this operator: what is the matter, in the form "with …"."""
        where = self.attributes.get("struct_name", "").strip("/")
        return LowbitError(
            f'Paddle\'s operator "{self.name}"{f" in {where}" if where else ""} {what}; replace it in the '
            "model's forward, or export to Paddle Inference only (--format paddle)"
        )

    def ints(self, index: int, graph: Graph) -> list[Any]:
        """The integers of an input that holds numbers; a BatchSize or None where one is only known later."""
        given = self.inputs[index]
        parts = [
            part
            for name in (given if isinstance(given, list) else [given])
            for part in self._flat(name, graph)
        ]
        return [part if part is None or isinstance(part, BatchSize) else int(part) for part in parts]

    def tensor_of_ints(self, index: int, graph: Graph) -> str:
        """An input that holds numbers, as one int64 tensor of one axis, computed when the network runs."""
        given = self.inputs[index]
        parts = given if isinstance(given, list) else [given]
        flat = [
            graph.add_sizes(
                "Reshape",
                [part, graph.constant(np.array([-1], np.int64))],
                np.reshape(graph.known(part), [-1]),
            )
            for part in parts
        ]
        return flat[0] if len(flat) == 1 else graph.add("Concat", flat, shape=[len(flat)], axis=0)

    def number(self, index: int, graph: Graph) -> float:
        """The one number of an input."""
        return float(self._flat(self.inputs[index], graph)[0])

    def _flat(self, name: str, graph: Graph) -> list[Any]:
        value = graph.known(name)
        if value is None:
            raise self.refuse("takes numbers that are computed from the images")
        return list(np.asarray(value).reshape([-1]))


Converter = Callable[[Op, Graph], Result]
_CONVERTERS: dict[str, Converter] = {}


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Register a converter for operators by their names in Paddle, without `pd_op.`"""

    def register(function: Converter) -> Converter:
        for name in names:
            _CONVERTERS[f"pd_op.{name}"] = function
        return function

    return register


def find_converter(op: Op) -> Converter:
    """The converter of an operator, or an error that names it."""
    if op.name in _CONVERTERS:
        return _CONVERTERS[op.name]
    raise op.refuse("has no ONNX form in lowbit")


def operator_names() -> list[str]:
    """The operators that can be converted, sorted."""
    return sorted(name.removeprefix("pd_op.") for name in _CONVERTERS)
