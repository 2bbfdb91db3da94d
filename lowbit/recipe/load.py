"""From a recipe file, in whichever dialect, to a Recipe; and from values in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowbit.config.yaml_file import read_yaml
from lowbit.errors import LowbitError, nearest
from lowbit.recipe.dialects import DIALECTS
from lowbit.recipe.dialects.dialect import Dialect, Sources
from lowbit.recipe.recipe import Recipe


def load_recipe(path: str | Path) -> Recipe:
    """Reads a recipe file; its keys say which dialect it is in.

    load_recipe("recipes/qat_w8a8.yaml")
    """
    path = Path(path)
    if not os.path.exists(path):  # also False for a name that is too long or has a NUL character in it
        raise LowbitError(f"no recipe file {path}; those that come with lowbit are in recipes/")
    values, lines = read_yaml(path)
    if not isinstance(values, dict) or not values:
        raise LowbitError(f"{path}: expected a recipe, such as `rules:` and a list of rules below it")
    return _read(values, {at: f"{path}:{line}" for at, line in lines.items()}, str(path))


def make_recipe(values: Mapping[str, Any], origin: str = "recipe") -> Recipe:
    """A recipe out of a dictionary, in whichever dialect; mistakes are LowbitErrors that name the key.

    >>> make_recipe({"weight_bits": 4}).rules[0].forward.weight.grid
    'int4-narrow'
    """
    if not isinstance(values, Mapping):
        raise LowbitError(f"{origin}: expected a recipe, a dictionary such as {{'rules': [...]}}")
    return _read(dict(values), {}, origin)


def _read(values: dict[str, Any], sources: Sources, origin: str) -> Recipe:
    # The dialect that most of the keys belong to, misspelt ones included: a slip must not change the dialect.
    # Keys of several look alike, so that those without a slip decide between equals.
    def belonging(dialect: Dialect) -> tuple[int, int]:
        words = [str(key) for key in values]
        near = sum(nearest(word, dialect.keys) is not None for word in words)
        return near, sum(word in dialect.keys for word in words)

    return max(DIALECTS, key=belonging).read(values, sources, origin)
