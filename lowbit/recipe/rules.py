"""A rule: which layers it is about, and what it sets for them."""

from __future__ import annotations

import fnmatch
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from lowbit.config.base import Integer
from lowbit.errors import did_you_mean, nearest
from lowbit.recipe.model_layers import QUANTIZABLE, ModelLayer
from lowbit.recipe.plan import PRODUCTS
from lowbit.recipe.spec import FrozenSection, SpecSettings


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_type(word: str) -> str:
    if word not in QUANTIZABLE:
        raise ValueError(f'unknown layer type "{word}", {did_you_mean(word, QUANTIZABLE)}')
    return word


def _check_regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error} in {pattern!r}") from None
    return pattern


def _one_or_more(kind: Any) -> Any:
    return Annotated[list[kind], BeforeValidator(_as_list), Field(min_length=1)]


_Name = Annotated[str, Field(min_length=1)]
_Regex = Annotated[str, AfterValidator(_check_regex)]
_Type = Annotated[str, AfterValidator(_check_type)]


class Match(FrozenSection):
    """Which layers a rule is about; each key is one value or a list, and all keys given must agree.

    A name without wildcards is a layer or everything inside of it, so `layer1` is not `layer10`. A regular
    expression must match the whole name. Indices count as `lowbit plan` does; -1 is the last layer.
    """

    name: _one_or_more(_Name) | None = None
    regex: _one_or_more(_Regex) | None = None
    type: _one_or_more(_Type) | None = None
    index: _one_or_more(Integer) | None = None

    def matches(self, layer: ModelLayer, count: int) -> bool:
        """Whether a layer is meant; `count` is how many the model has."""
        return (
            (self.name is None or any(_has_name(layer, name) for name in self.name))
            and (self.regex is None or any(_has_regex(layer, pattern) for pattern in self.regex))
            and (self.type is None or layer.type in self.type)
            and (
                self.index is None or any(layer.index == i % count for i in self.index if -count <= i < count)
            )
        )

    def why_unused(self, layers: list[ModelLayer]) -> str | None:
        """What in it no layer has, or None: a rule that reaches nothing is a mistake.

        Each name, expression and index must be met by itself; of several types one is enough, since
        `type: [Conv2D, Linear]` is said of models without Linear, too.
        """
        count = len(layers)
        for name in self.name or ():
            if not any(_has_name(layer, name) for layer in layers):
                return f"no layer {_says_name(name)}{_near_name(name, layers)}"
        for pattern in self.regex or ():
            if not any(_has_regex(layer, pattern) for layer in layers):
                return f'no layer matches the regex "{pattern}"{_near_regex(pattern, layers)}'
        for index in self.index or ():
            if not -count <= index < count:
                return (
                    f"there is no layer {index}: the model's layers are 0 to {count - 1} (or -1 to {-count})"
                )
        if not any(self.matches(layer, count) for layer in layers):
            return (
                f"no layer has all of: {self}" if len(self.model_fields_set) > 1 else f"no layer has {self}"
            )
        return None

    def __str__(self) -> str:
        given = self.model_dump(exclude_none=True)
        return ", ".join(f"{key} {' or '.join(map(str, values))}" for key, values in given.items())


class _ProductSettings(FrozenSection):
    @model_validator(mode="after")
    def _names_an_operand(self) -> _ProductSettings:
        if not self.model_fields_set:
            raise ValueError(f"empty; give at least one of {', '.join(type(self).model_fields)}")
        return self

    def given(self) -> dict[str, SpecSettings]:
        """The operands that are set."""
        return {operand: getattr(self, operand) for operand in sorted(self.model_fields_set)}


class ForwardSettings(_ProductSettings):
    """What a rule says about Y = X·W."""

    input: SpecSettings = None
    weight: SpecSettings = None


class GradInputSettings(_ProductSettings):
    """What a rule says about dX = dY·W."""

    grad_output: SpecSettings = None
    weight: SpecSettings = None


class GradWeightSettings(_ProductSettings):
    """What a rule says about dW = dY·X."""

    grad_output: SpecSettings = None
    input: SpecSettings = None


class Rule(FrozenSection):
    """What is set for the layers that `match` (all of them, where it is left out).

    >>> rule = Rule(match={"index": 0}, forward={"weight": {"grid": "int8"}})
    >>> str(rule.forward.weight.grid)
    'int8'
    """

    match: Match = Match()
    skip: Literal[True] | None = None
    forward: ForwardSettings | None = None
    grad_input: GradInputSettings | None = None
    grad_weight: GradWeightSettings | None = None
    _place: str = PrivateAttr("")
    _key: str = PrivateAttr("")

    @model_validator(mode="after")
    def _says_one_thing(self) -> Rule:
        sets = any(getattr(self, product) for product in PRODUCTS)
        if self.skip and sets:
            raise ValueError("skip leaves the layers as they are, so nothing else can be set for them")
        if not self.skip and not sets:
            raise ValueError(f"sets nothing; give {', '.join(PRODUCTS)} or skip: true")
        return self

    def given(self) -> list[tuple[str, dict[str, Any]]]:
        """What it sets: `product.operand` with the keys of its TensorSpec and their values.

        >>> Rule(forward={"weight": {"granularity": "N"}}).given()
        [('forward.weight', {'granularity': Granularity(letters='N')})]
        """
        return [
            (f"{product}.{operand}", spec.given())
            for product in PRODUCTS
            if (settings := getattr(self, product))
            for operand, spec in settings.given().items()
        ]

    def __eq__(self, other: object) -> bool:
        # Not the private part: a rule is the same wherever it was written.
        return isinstance(other, Rule) and self.model_dump() == other.model_dump()

    __hash__ = None

    @property
    def place(self) -> str:
        """Where it was written, such as `recipe.yaml:7`, or nothing."""
        return self._place

    def at(self, place: str, key: str = "") -> Rule:
        """The same rule with the place where it was written, and its name there if that is no rule."""
        rule = self.model_copy()
        rule._place, rule._key = place, key
        return rule

    def called(self, number: int) -> str:
        """What messages call the recipe's n-th rule.

        >>> Rule(skip=True).at("recipe.yaml:7").called(2)
        'recipe.yaml:7: rule 2'
        """
        name = self._key or f"rule {number}"
        return f"{self._place}: {name}" if self._place else name


def _has_name(layer: ModelLayer, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for name in layer.names)


def _has_regex(layer: ModelLayer, pattern: str) -> bool:
    return any(re.fullmatch(pattern, name) for name in layer.names)


def _says_name(pattern: str) -> str:
    inside = pattern[1:-1]
    contains = pattern == f"*{inside}*" and not set(inside) & set("*?[")
    return f'has "{inside}" in its name' if contains else f'is named "{pattern}"'


def _near_name(pattern: str, layers: list[ModelLayer]) -> str:
    inside = f"*{pattern}*"
    if any(_has_name(layer, inside) for layer in layers):
        return f'; for names that contain it write "{inside}"'
    names = [name for layer in layers for name in layer.names]
    parents = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
    guess = nearest(pattern.strip("*"), [*names, *sorted(parents)])
    return f', did you mean "{guess}"?' if guess else f"; its layers are {_some(names)}"


def _near_regex(pattern: str, layers: list[ModelLayer]) -> str:
    names = [name for layer in layers for name in layer.names]
    if any(re.search(pattern, name) for name in names):
        return f'; it must match the whole name, as ".*{pattern}.*" would'
    return f"; its layers are {_some(names)}"


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])}, … ({len(names)} in all)"
