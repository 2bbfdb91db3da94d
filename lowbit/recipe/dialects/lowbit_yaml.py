"""lowbit's own dialect: `rules`, read and written. The other dialects are translated into it."""

from __future__ import annotations

from typing import Any

import yaml

from lowbit.config.mistakes import check_section
from lowbit.recipe.dialects.dialect import Dialect, Sources
from lowbit.recipe.recipe import Recipe


def read_recipe(values: dict[str, Any], sources: Sources, origin: str) -> Recipe:
    """A recipe out of its sections; each rule remembers its place.

    >>> read_recipe({"rules": [{"forward": {"input": {"grid": "uint4"}}}]}, {}, "here").rules[0].match
    Match(name=None, regex=None, type=None, index=None)
    """
    recipe = check_section(Recipe, values, sources, origin)
    rules = [rule.at(sources.get(("rules", index), "")) for index, rule in enumerate(recipe.rules)]
    return recipe.model_copy(update={"rules": rules})


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML, complete: what is saved with every run and can be read again."""
    values = recipe.model_dump(mode="json", exclude={"rules"})
    rules = [rule.model_dump(mode="json", exclude_unset=True) for rule in recipe.rules]
    return yaml.safe_dump({"rules": rules, **values}, sort_keys=False, width=100)


DIALECT = Dialect(name="lowbit", keys=frozenset(Recipe.model_fields), read=read_recipe)
