"""Forwards that only call layers one after the other, read from their source.

Most blocks of PaddleClas and of users are such chains: a convolution, a batch norm and, with a flag, an
activation. What such a forward computes is known from its text alone, as for `nn.Sequential`, so its steps
can be fused. Every statement must be one of these, with one variable that is passed on::

    x = self.conv(x)                        # also nested: self.bn(self.conv(x)), and F.relu(x)
    if self.act:                            # also `is not None`; without else
        x = self.relu(x)
    return x

Anything else is not a chain. Nor is a forward whose source is not that of the code that runs, for example
because the file has changed since.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import paddle.nn.functional as F
from paddle import nn

from lowbit.nn.plain_layers import has_hooks

_PACKAGES = {"paddle", "lowbit", "builtins"}
_FUNCTIONS = {"relu": nn.ReLU(), "relu6": nn.ReLU6(), "hardswish": nn.Hardswish()}


@dataclass(frozen=True)
class Call:
    """A step: a sublayer by its name, or a function as the layer that computes the same."""

    name: str
    layer: nn.Layer | None = None


@dataclass(frozen=True)
class Condition:
    """Steps that run where an attribute is true or, with `is_not_none`, is not None."""

    name: str
    is_not_none: bool
    steps: tuple[Step, ...]


Step = Call | Condition


def chain_modules(layer: nn.Layer, forward: Callable[..., Any]) -> list[nn.Layer] | None:
    """The layers that `forward` would call now with `layer` as self, in their order; None if it is no chain.

    Also None if one of them has hooks or a class of the user's: its code could change `layer`'s attributes
    on the way, and with them the rest of the chain.

    modules = chain_modules(block, type(block).forward)  # such as [block.conv, block.bn, block.relu]
    """
    kind = type(layer)
    if (kind.__getattribute__, kind.__getattr__) != (object.__getattribute__, nn.Layer.__getattr__):
        return None  # `self.conv` may be anything
    steps = chain_of(forward)
    modules = None if steps is None else _modules(layer, steps)
    return modules if modules is not None and all(map(_runs_no_other_code, modules)) else None


def _runs_no_other_code(module: nn.Layer) -> bool:
    is_known = all(kind.__module__.split(".")[0] in _PACKAGES for kind in type(module).__mro__)
    if not is_known or has_hooks(module) or "forward" in vars(module):
        return False
    return all(map(_runs_no_other_code, module._sub_layers.values()))


def _modules(layer: nn.Layer, steps: Sequence[Step]) -> list[nn.Layer] | None:
    modules: list[nn.Layer] = []
    for step in steps:
        if isinstance(step, Call):
            found = step.layer or _sublayer(layer, step.name)
            if found is None:
                return None
            modules.append(found)
            continue
        if not _is_plain_attribute(layer, step.name):
            return None
        value = getattr(layer, step.name)
        if (value is not None) if step.is_not_none else value:
            inner = _modules(layer, step.steps)
            if inner is None:
                return None
            modules += inner
    return modules


def _sublayer(layer: nn.Layer, name: str) -> nn.Layer | None:
    is_shadowed = name in vars(layer) or inspect.getattr_static(type(layer), name, None) is not None
    return None if is_shadowed else layer._sub_layers.get(name)


def _is_plain_attribute(layer: nn.Layer, name: str) -> bool:
    """Whether reading it runs no code of the user's."""
    if name in vars(layer) or name in layer._sub_layers:
        return True
    found = inspect.getattr_static(type(layer), name, None)
    return isinstance(found, bool | int | str | None) and hasattr(type(layer), name)


@cache
def chain_of(forward: Callable[..., Any]) -> tuple[Step, ...] | None:
    """The steps of a forward(self, x), or None where it is more than a chain."""
    if not isinstance(forward, FunctionType) or forward.__closure__ or forward.__defaults__:
        return None
    definition = _definition(forward)
    if definition is None:
        return None
    _, argument = (each.arg for each in definition.args.args)
    body = definition.body
    if ast.get_docstring(definition, clean=False) is not None:
        body = body[1:]
    if not body or not isinstance(body[-1], ast.Return) or body[-1].value is None:
        return None
    read = _Reader(forward.__globals__)
    found = read.statements(body[:-1], argument)
    if found is None:
        return None
    steps, variable = found
    last = read.expression(body[-1].value, variable)
    return None if last is None else (*steps, *last)


def _definition(forward: FunctionType) -> ast.FunctionDef | None:
    """The syntax tree of a `def name(self, x)`, if its source is that of the code that runs."""
    code = forward.__code__
    source = "".join(linecache.getlines(code.co_filename, forward.__globals__))
    try:
        tree = ast.parse(source)
        whole = compile(tree, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.name, node.lineno) == (
            code.co_name,
            code.co_firstlineno,
        ):
            # A notebook compiles the statements of a cell one by one, with another code for imported names.
            alone = compile(ast.Module([node], []), code.co_filename, "exec", dont_inherit=True)
            is_same = code in [*_codes_in(whole), *_codes_in(alone)]
            return node if is_same and _takes_one_argument(node) else None
    return None


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes_in(each)


def _takes_one_argument(definition: ast.FunctionDef) -> bool:
    given = definition.args
    others = (given.posonlyargs, given.kwonlyargs, given.defaults, given.vararg, given.kwarg)
    is_plain = not any(others) and not definition.decorator_list
    return is_plain and len(given.args) == 2 and given.args[0].arg == "self"


class _Reader:
    """Reads statements of a chain; every method gives None for anything else."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names  # the function's globals

    def statements(self, body: Sequence[ast.stmt], variable: str) -> tuple[tuple[Step, ...], str] | None:
        """The steps, and the name of the variable that has the result."""
        steps: tuple[Step, ...] = ()
        for statement in body:
            if isinstance(statement, ast.If):
                conditional = self._condition(statement, variable)
                if conditional is None:
                    return None
                steps = (*steps, conditional)
                continue
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                return None
            target = statement.targets[0]
            found = self.expression(statement.value, variable)
            if not isinstance(target, ast.Name) or target.id == "self" or found is None:
                return None
            steps, variable = (*steps, *found), target.id
        return steps, variable

    def _condition(self, statement: ast.If, variable: str) -> Condition | None:
        test, is_not_none = statement.test, False
        if isinstance(test, ast.Compare):
            against = test.comparators[0]
            is_none = isinstance(against, ast.Constant) and against.value is None
            if len(test.ops) != 1 or not isinstance(test.ops[0], ast.IsNot) or not is_none:
                return None
            test, is_not_none = test.left, True
        found = self.statements(statement.body, variable)
        # The variable must be the same whether or not the condition holds.
        if statement.orelse or found is None or found[1] != variable or not _is_of_self(test):
            return None
        return Condition(test.attr, is_not_none, found[0])  # type: ignore[attr-defined]

    def expression(self, node: ast.expr, variable: str) -> tuple[Step, ...] | None:
        """The steps of calls around the variable."""
        if isinstance(node, ast.Name):
            return () if node.id == variable else None
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            return None
        inner = self.expression(node.args[0], variable)
        called = self._called(node.func)
        return None if inner is None or called is None else (*inner, called)

    def _called(self, node: ast.expr) -> Call | None:
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            return None
        if _is_of_self(node):
            return Call(node.attr)
        is_functional = self._names.get(node.value.id) is F
        layer = _FUNCTIONS.get(node.attr) if is_functional else None
        return None if layer is None else Call(f"F.{node.attr}", layer)


def _is_of_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
