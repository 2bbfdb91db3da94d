"""What a dialect is: words by which it is recognised, and a reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lowbit.config.yaml_file import KeyPath
from lowbit.recipe.recipe import Recipe

Sources = Mapping[KeyPath, str]  # where each key was written, such as `recipe.yaml:7`


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A way to write recipes: its top-level words, by which a file is recognised, and its reader."""

    name: str
    keys: frozenset[str]
    read: Callable[[dict[str, Any], Sources, str], Recipe]
