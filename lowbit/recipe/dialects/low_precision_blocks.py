"""A block of the low-precision-training YAML: an operand's keys, and filters that change them by layer."""

from __future__ import annotations

import glob
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from lowbit.config.base import Integer
from lowbit.errors import LowbitError
from lowbit.numerics import parse_grid
from lowbit.recipe.settings import FrozenSection, SpecSettings

_TURNS = 50  # of the observer mse when it calibrates; every call has time for one
_CALIBRATED = ("fixed", "learned")
# The keys of a TensorSpec that this dialect has words of its own for; the others keep their names.
_OWN_WORDS = ("grid", "rounding")
_SHARED = {key: field for key, field in SpecSettings.model_fields.items() if key not in _OWN_WORDS}


def _check_qtype(word: str) -> str:
    try:
        grid = parse_grid(word)
    except LowbitError as error:
        raise ValueError(str(error)) from None
    if not grid.signed:
        raise ValueError(
            f'write "int{grid.bits}": where an input is never negative, it is put on {grid} by itself'
        )
    return str(grid)


Qtype = Annotated[str, AfterValidator(_check_qtype)]

_Keys = create_model(
    "_Keys",
    __base__=FrozenSection,
    qtype=(Qtype, None),
    stochastic=(bool, None),
    **{key: (field.rebuild_annotation(), None) for key, field in _SHARED.items()},
)


class BlockKeys(_Keys):
    """What a block and its filters can set."""

    def words(self) -> dict[str, str]:
        """The keys that are set, as those of a TensorSpec.

        >>> BlockKeys(qtype="int4", stochastic=True).words()
        {'grid': 'int4', 'rounding': 'stochastic'}
        """
        words = {} if self.qtype is None else {"grid": self.qtype}
        words |= self.model_dump(include=set(_SHARED), exclude_unset=True)
        if self.stochastic is not None:
            words["rounding"] = "stochastic" if self.stochastic else "nearest"
        return words


class Filter(BlockKeys):
    """Other keys for some layers: that with the number `id`, or those whose dotted name contains `name`."""

    id: Integer | None = None
    name: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Filter:
        if self.id is None and self.name is None:
            raise ValueError("give id or name: which layers does it change?")
        if not self.words():
            raise ValueError(f"sets nothing; give at least one of {', '.join(BlockKeys.model_fields)}")
        return self

    def match(self) -> dict[str, Any]:
        """The same layers in lowbit's words.

        >>> Filter(name="fc", qtype="full").match()
        {'name': '*fc*'}
        """
        found: dict[str, Any] = {} if self.id is None else {"index": self.id}
        return found if self.name is None else found | {"name": f"*{glob.escape(self.name)}*"}


def _none_as_empty(value: Any) -> Any:
    return [] if value is None else value  # `filters:` with nothing below it


class Block(BlockKeys):
    """How one operand is quantized: in all layers, and differently in those that filters name."""

    qtype: Qtype
    filters: Annotated[list[Filter], BeforeValidator(_none_as_empty)] = []

    def base_words(self, *, is_input: bool) -> dict[str, str]:
        """What holds where no filter does; an input is unsigned where it is never negative.

        >>> Block(qtype="int4", granularity="N").base_words(is_input=True)
        {'sign': 'auto', 'grid': 'int4', 'granularity': 'N'}
        """
        return ({"sign": "auto"} if is_input else {}) | _with_turns(self.words(), self)

    def filter_words(self, filter_: Filter) -> dict[str, str]:
        """What a filter of this block sets."""
        words = filter_.words()
        others = [other for other in self.filters if other.observer is not None]
        if filter_.scaling is not None and self.observer is not None and not others:
            words = {"observer": self.observer} | words  # whose turns depend on the scaling
        return _with_turns(words, self)


def _with_turns(words: dict[str, str], block: Block) -> dict[str, str]:
    scaling = words.get("scaling", block.scaling)
    if words.get("observer") == "mse" and scaling in _CALIBRATED:
        return words | {"observer": f"mse({_TURNS})"}
    return words
