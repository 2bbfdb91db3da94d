"""Quantization-aware training in a run: the config's recipe, put into the model and kept with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import yaml

from lowbit.config import Config
from lowbit.nn.convert import prepare
from lowbit.recipe import Recipe, dump_recipe, load_recipe, make_recipe


def recipe_of(config: Config) -> Recipe | None:
    """The recipe that a config asks for: a name, the path of a file, or its values; None without one."""
    source = config.recipe_source
    if source is None:
        return None
    return load_recipe(source) if isinstance(source, str) else make_recipe(source, "Recipe")


def recipe_values(recipe: Recipe | None) -> dict[str, Any] | None:
    """The recipe as plain values in lowbit's own dialect, for a checkpoint."""
    return None if recipe is None else yaml.safe_load(dump_recipe(recipe))


def recipe_differences(before: Any, now: Any, place: str = "") -> list[str]:
    """What differs between the values of two recipes, key by key; rules have their numbers.

    >>> recipe_differences({"calibration": {"steps": 10}}, {"calibration": {"steps": 20}})
    ['calibration.steps was 10, is 20']
    """
    if before == now:
        return []
    if isinstance(before, list) and isinstance(now, list):
        # From 1, as in messages about a rule.
        before, now = ({str(n): one for n, one in enumerate(many, start=1)} for many in (before, now))
    if not (isinstance(before, dict) and isinstance(now, dict)):
        was, is_ = ("missing" if value is None else value for value in (before, now))
        return [f"{place} was {was}, is {is_}"]
    keys = list(before | now)
    return [
        line
        for key in keys
        for line in recipe_differences(before.get(key), now.get(key), f"{place}.{key}" if place else key)
    ]


def prepare_as_saved(
    model: paddle.nn.Layer, values: dict[str, Any] | None, origin: str, image_shape: tuple[int, int, int]
) -> paddle.nn.Layer:
    """The model with the layers of the recipe that it was trained with, ready for its weights."""
    if values is None:
        return model
    return prepare(model, make_recipe(values, origin), example_images(image_shape))


def example_images(shape: tuple[int, int, int]) -> paddle.Tensor:
    """Two images of random numbers, always the same: enough to see which layer calls which."""
    numbers = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    return paddle.to_tensor(numbers)
