"""Which function turns which Paddle operator into ONNX's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.deploy.onnx.graph import Graph
from lowbit.errors import LowbitError

Result = str | list[str]  # a tensor's name, or those of a list of tensors


@dataclass(frozen=True)
class Op:
    """An operator of a Paddle program, its inputs already in the graph."""

    name: str
    attributes: dict[str, Any]
    inputs: Sequence[Any]  # a tensor's name, a list of names, or None
    shapes: list[list[int]]  # of the results; -1 where only known at run time

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

    def ints(self, index: int, graph: Graph) -> list[int | None]:
        """The integers of an input that holds numbers: None where one depends on the batch's size."""
        given = self.inputs[index]
        if isinstance(given, list):
            return [None if part is None else int(part) for name in given for part in self._flat(name, graph)]
        return [None if part is None else int(part) for part in self._flat(given, graph)]

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
