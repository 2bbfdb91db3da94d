"""Recipes by name, from a file in any dialect or from values in Python; and back to YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from lowbit.config.load import RECIPES, bundled_names, find_file
from lowbit.config.yaml_file import check_section, read_yaml
from lowbit.errors import LowbitError, nearest
from lowbit.recipe.dialects import low_precision, paddleslim
from lowbit.recipe.recipe import Recipe, Sources

_FOLDERS = ("recipes", "qt_config")  # where the repository has them, and low-precision training's original
_ABOUT = ("description", "reached")  # keys of a recipe that are for people
_NOT_MEASURED = "not measured yet"
# Left out of what is saved where they are at their defaults.
_LATER_KEYS = ("outputs", "lsq", "oscillation", "progressive", "fix_scales", "reestimate_bn")
_PTQ = re.compile(r"ptq_w([2-8])a([2-8])")
_KINDS = {"ptq": "post-training", "qat": "QAT", "qt": "low-precision training"}


def load_recipe(source: str | os.PathLike[str] | Mapping[str, Any] | Recipe) -> Recipe:
    """The recipe that is meant: the name of a bundled one, a file, values in any dialect, or a Recipe itself.

    A text with a path separator or the suffix .yaml or .yml is a file, any other a name (`list_recipes`).
    `ptq_wNaM` stands for `ptq_w4a4` with N bits for weights and M for inputs, `ptq_wNa8` for `ptq_w4a8`.

    >>> load_recipe("qat_w4a4") == load_recipe("qt_config/qat_w4a4.yaml")
    True
    """
    if isinstance(source, Recipe):
        return source
    if isinstance(source, Mapping):
        return make_recipe(source)
    if not isinstance(source, str | os.PathLike):
        what = type(source).__name__
        raise LowbitError(f"a recipe is a name, a path, a dict or a lowbit.Recipe, got {what}")
    bits = _PTQ.fullmatch(os.fspath(source))
    if bits and source not in bundled_names(RECIPES):
        return make_recipe(_ptq_values(*bits.groups()), os.fspath(source))
    path = find_file(os.fspath(source), RECIPES, "recipe", _FOLDERS)
    values, lines = _read_file(path)
    return _read(values, {at: f"{path}:{line}" for at, line in lines.items()}, str(path))


def make_recipe(values: Mapping[str, Any], origin: str = "recipe") -> Recipe:
    """A recipe out of a dictionary, in whichever dialect; mistakes are LowbitErrors that name the key.

    >>> str(make_recipe({"weight_bits": 4}).rules[0].forward.weight.grid)
    'int4-narrow'
    """
    if not isinstance(values, Mapping):
        raise LowbitError(f"{origin}: expected a recipe, a dictionary such as {{'rules': [...]}}")
    return _read(dict(values), {}, origin)


def recipe_file_values(name: str) -> dict[str, Any]:
    """A bundled recipe as plain values, in its own dialect.

    >>> recipe_file_values("ptq_w8a8")["calibration"]["steps"]
    10
    """
    values, _ = _read_file(find_file(name, RECIPES, "recipe", _FOLDERS))
    return {key: value for key, value in values.items() if key not in _ABOUT}


def _ptq_values(weight_bits: str, input_bits: str) -> dict[str, Any]:
    """A recipe without training, with these bits but for the layers that the bundled one keeps in 8."""
    values = recipe_file_values("ptq_w4a8" if input_bits == "8" else "ptq_w4a4")
    forward = values["rules"][0]["forward"]
    forward["weight"]["grid"], forward["input"]["grid"] = f"int{weight_bits}", f"int{input_bits}"
    return values


@dataclass(frozen=True, kw_only=True)
class RecipeEntry:
    """A bundled recipe: what it is for, and what was reached with it."""

    name: str
    kind: str  # post-training, QAT or low-precision training
    description: str
    reached: str

    def to_dict(self) -> dict[str, str]:
        """As plain values for JSON."""
        return asdict(self)


def list_recipes() -> list[RecipeEntry]:
    """The recipes that come with the package; each can be given by its name.

    >>> [recipe.kind for recipe in list_recipes() if recipe.name == "qat_w4a4"]
    ['QAT']
    """
    return [_entry(name) for name in bundled_names(RECIPES)]


def _entry(name: str) -> RecipeEntry:
    values, _ = _read_file(RECIPES / f"{name}.yaml")
    kind = _KINDS[name.partition("_")[0]]
    reached = values.get("reached", _NOT_MEASURED)
    return RecipeEntry(name=name, kind=kind, description=values["description"], reached=reached)


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML in lowbit's dialect, complete: it is saved with every run and can be read again."""
    # A recipe from before there was a key stays what it was, and a run that used it can be resumed.
    fields = Recipe.model_fields
    absent = {name for name in _LATER_KEYS if getattr(recipe, name) == fields[name].default}
    values = recipe.model_dump(mode="json", exclude={"rules", *absent})
    rules = [rule.model_dump(mode="json", exclude_unset=True) for rule in recipe.rules]
    return yaml.safe_dump({"rules": rules, **values}, sort_keys=False, width=100)


def _read_file(path: Path) -> tuple[dict[str, Any], dict[Any, int]]:
    values, lines = read_yaml(path)
    if not isinstance(values, dict) or not values:
        raise LowbitError(f"{path}: expected a recipe, such as `rules:` and a list of rules below it")
    return values, lines


def _read(values: dict[str, Any], sources: Sources, origin: str) -> Recipe:
    for key in _ABOUT:
        if not isinstance(values.get(key, ""), str):
            raise LowbitError(f"{sources.get((key,), origin)}: {key}: expected a text, got {values[key]!r}")
    values = {key: value for key, value in values.items() if key not in _ABOUT}

    # The dialect that most of the keys belong to, misspelt ones included: a slip must not change the dialect.
    # Keys of several look alike, so that those without a slip decide between equals.
    def belonging(dialect: Dialect) -> tuple[int, int]:
        words = [str(key) for key in values]
        near = sum(nearest(word, dialect.keys) is not None for word in words)
        return near, sum(word in dialect.keys for word in words)

    return max(DIALECTS, key=belonging).read(values, sources, origin)


def read_rules(values: dict[str, Any], sources: Sources, origin: str) -> Recipe:
    """lowbit's own dialect, which the others are translated into: `rules`, each with its place.

    >>> read_rules({"rules": [{"forward": {"input": {"grid": "uint4"}}}]}, {}, "here").rules[0].match
    Match(name=None, regex=None, type=None, index=None)
    """
    recipe = check_section(Recipe, values, sources, origin)
    rules = [rule.at(sources.get(("rules", index), "")) for index, rule in enumerate(recipe.rules)]
    return recipe.model_copy(update={"rules": rules})


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A way to write recipes: its top-level keys, by which a file is recognised, and its reader."""

    name: str
    keys: frozenset[str]
    read: Callable[[dict[str, Any], Sources, str], Recipe]


DIALECTS = (
    Dialect(name="lowbit", keys=frozenset(Recipe.model_fields), read=read_rules),
    Dialect(
        name="PaddleSlim",
        keys=frozenset(paddleslim.PaddleSlimConfig.model_fields),
        read=paddleslim.read_recipe,
    ),
    Dialect(
        name="low precision",
        keys=frozenset(low_precision.LowPrecisionConfig.model_fields),
        read=low_precision.read_recipe,
    ),
)
