"""What a dialect is, and how its mistakes become messages with a place, a key and the nearest word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from lowbit.config.base import Section
from lowbit.config.mistakes import describe_mistake
from lowbit.config.yaml_file import KeyPath
from lowbit.errors import LowbitError
from lowbit.recipe.recipe import Recipe

Sources = Mapping[KeyPath, str]  # where each key was written, such as `recipe.yaml:7`
SectionType = TypeVar("SectionType", bound=Section)


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A way to write recipes: its top-level words, by which a file is recognised, and its reader."""

    name: str
    keys: frozenset[str]
    read: Callable[[dict[str, Any], Sources, str], Recipe]


def validate(schema: type[SectionType], values: Any, sources: Sources, origin: str) -> SectionType:
    """The values as a section; every mistake in them is listed with its place."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        messages = [describe_mistake(detail, values, dict(sources), origin) for detail in error.errors()]
        raise LowbitError("\n".join(dict.fromkeys(messages))) from None
