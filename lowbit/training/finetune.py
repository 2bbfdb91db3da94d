"""The preset of `lowbit train --finetune`: how long and how fast trained weights are trained further.

Four settings follow from the number of training images and from the recipe:

| | full precision | 8 bits | fewer bits | gradients quantized |
|---|---|---|---|---|
| learning rate, of the config's | 0.1 | 0.01 | 0.1 | 0.1 |
| images to train on, in thousands | 200 | 100 | 300 | 300 |
| epochs at least | 3 | 1 | 3 | 3 |
| warm-up, of the epochs | 5 % | none | 5 % | 5 % |
| teacher | none | none | fp32 | fp32 |

8-bit networks are close to the trained ones and need small steps only; with fewer bits the weights have to
move, and the answers of the unquantized network help. These are starting points: options that are given win.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from lowbit.config import Config, validate
from lowbit.config.load import set_value
from lowbit.errors import LowbitError
from lowbit.formatting import number
from lowbit.recipe import Recipe
from lowbit.training.inputs import open_section
from lowbit.training.quantization import recipe_of

_MOST_EPOCHS = 30


@dataclass(frozen=True)
class Preset:
    """How one kind of network is fine-tuned."""

    kind: str
    rate: float  # of the config's learning rate
    images: int  # to train on, all in all
    fewest_epochs: int
    warmup: float  # of the epochs
    teacher: bool

    def epochs(self, images: int) -> int:
        """
        >>> [Preset("8 bits", 0.01, 100_000, 1, 0.0, False).epochs(n) for n in (1437, 50_000, 1_281_167)]
        [30, 2, 1]
        """
        return min(_MOST_EPOCHS, max(self.fewest_epochs, math.ceil(self.images / images)))


_FULL = Preset("full precision", 0.1, 200_000, 3, 0.05, teacher=False)
_EIGHT_BITS = Preset("8 bits", 0.01, 100_000, 1, 0.0, teacher=False)
_FEWER_BITS = Preset("fewer than 8 bits", 0.1, 300_000, 3, 0.05, teacher=True)
_GRADIENTS = Preset("quantized gradients", 0.1, 300_000, 3, 0.05, teacher=True)


def finetune_config(config: Config, given: Collection[str]) -> tuple[Config, list[str]]:
    """The config with the preset's settings, and lines that say what was chosen.

    `given` are the settings that the user has chosen himself, such as `Global.epochs`: they stay as they are.

    config, lines = finetune_config(load_config("digits", ["Global.pretrained_model=best.pdparams"]), ())
    """
    if config.pretrained is None:
        raise LowbitError("--finetune trains trained weights further: give them with --pretrained FILE")
    if config.DataLoader.Train is None:
        raise LowbitError("the config has no DataLoader.Train section: there is nothing to train on")
    images = len(open_section(config.DataLoader.Train.dataset, config.num_classes))
    preset = preset_for(recipe_of(config))
    values = config.model_dump(mode="json")
    chosen = {
        name: value
        for name, value in _settings(config, preset, images, given).items()
        if not _is_given(name, given)
    }
    for name, value in chosen.items():
        set_value(values, name, value, "--finetune")
    lines = [f"fine-tuning on {images:,} images, {preset.kind}; options that are given win:"]
    for name, value in chosen.items():
        lines.append(f"  {name}: {number(value) if isinstance(value, float) else value}")
    return validate(values, {}, "--finetune"), lines


def preset_for(recipe: Recipe | None) -> Preset:
    """The preset that fits the rules of a recipe; None is training in full precision.

    >>> from lowbit.recipe import load_recipe
    >>> [preset_for(load_recipe(name)).kind for name in ("qat_w8a8", "qat_w4a4", "qt_w4a4g4")]
    ['8 bits', 'fewer than 8 bits', 'quantized gradients']
    """
    if recipe is None:
        return _FULL
    if recipe.quantizes_gradients:
        return _GRADIENTS
    grids = [keys["grid"] for rule in recipe.rules for _, keys in rule.given() if "grid" in keys]
    bits = min((grid.bits for grid in grids if grid.bits is not None), default=32)
    return _FEWER_BITS if bits < 8 else _EIGHT_BITS


def _settings(config: Config, preset: Preset, images: int, given: Collection[str]) -> dict[str, Any]:
    epochs = config.Global.epochs if _is_given("Global.epochs", given) else preset.epochs(images)
    schedule = config.Optimizer.lr
    piecewise = schedule.name == "Piecewise" and schedule.values
    rate = max(schedule.values) if piecewise else schedule.max_learning_rate or schedule.learning_rate
    found: dict[str, Any] = {
        "Global.epochs": epochs,
        "Optimizer.lr.name": "Cosine",
        "Optimizer.lr.learning_rate": rate * preset.rate,
        "Optimizer.lr.warmup_epoch": preset.warmup * epochs,
    }
    if preset.teacher and config.Distillation is None:
        found["Distillation.teacher"] = "fp32"
    return found


def _is_given(name: str, given: Collection[str]) -> bool:
    """Whether a setting, a section it is in or a part of it was given."""
    return any(f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.") for other in given)
