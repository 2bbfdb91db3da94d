"""Resuming: what must be equal for the same bits, and what differs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowbit.accel.process_settings import SETTING
from lowbit.config import Config, validate
from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.machine.cpu import hardware_info
from lowbit.recipe import make_recipe
from lowbit.training.checkpoint import Checkpoint
from lowbit.training.quantization import recipe_differences, recipe_values

if TYPE_CHECKING:
    from lowbit.training.session import Session


# Each of these alters the order or width of sums inside Paddle's libraries.
_SETTINGS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    SETTING,
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "FLAGS_cudnn_deterministic",
    "NVIDIA_TF32_OVERRIDE",
)


_EARLIER_NAMES = {"neighbours": "batch_norm"}  # keys of records of version 0.2


def environment_record() -> dict[str, str]:
    """Versions, processor and thread settings as plain strings; two equal records promise equal bits.

    Imports Paddle first, because that sets OMP_NUM_THREADS to 1 where the user has not set it. Call it after
    `apply_amd_fix`.
    """
    import numpy
    import paddle

    cpu = hardware_info()
    record = {
        "paddle": f"{paddle.__version__} ({paddle.version.commit})",
        "numpy": numpy.__version__,
        "cpu": f"{cpu.vendor} {cpu.model}".strip(),
        "cpu_features": "unknown" if cpu.features is None else " ".join(sorted(cpu.features)),
        "kernels": "none" if kernels() is None else "C++",  # all their variants give the same bits
        "device": paddle.device.get_device().split(":")[0],
    }
    if record["device"] == "gpu":
        record["gpu"] = paddle.device.cuda.get_device_name()
        record["cuda"] = f"{paddle.version.cuda()} (cuDNN {paddle.version.cudnn()})"
    return record | {name: os.environ.get(name, "unset") for name in _SETTINGS}


def environment_differences(saved: Mapping[str, str], now: Mapping[str, str] | None = None) -> list[str]:
    """One phrase per difference between a saved record and this process's; empty when bits will be equal.

    >>> environment_differences({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"})
    ['OMP_NUM_THREADS was 2, is 1']
    """
    now = environment_record() if now is None else now
    saved = {_EARLIER_NAMES.get(key, key): value for key, value in saved.items()}
    return [
        f"{key} was {saved.get(key, 'not recorded')}, is {now.get(key, 'not recorded')}"
        for key in sorted(saved.keys() | now.keys())
        if saved.get(key) != now.get(key)
    ]


# Whether a run of this config can resume from a checkpoint.


# The parts of a config that shape the weights.
_PLACES = (
    *(("AMP",), ("Arch",), ("Loss", "Train"), ("Distillation",), ("Optimizer",), ("EMA",), ("Global", "ema")),
    *(("DataLoader", "Train", "dataset"), ("DataLoader", "Train", "sampler", "name")),
    *(("DataLoader", "Train", "sampler", "scales"), ("DataLoader", "Train", "sampler", "num_repeats")),
    ("Global", "update_freq"),
)


def differences(checkpoint: Checkpoint, session: Session, path: Path) -> list[str]:
    """Differences that change the rest of the run; those that prevent resuming are an error."""
    if checkpoint.model_name != session.config.Arch.name:
        raise LowbitError(
            f"{path} is a checkpoint of {checkpoint.model_name}, the config trains "
            f"{session.config.Arch.name}; resume with the config of that run, or start a new one"
        )
    _check_recipe(checkpoint, session, path)
    if checkpoint.classes != session.classes:
        raise LowbitError(
            f"{path} was trained on other classes ({_some(checkpoint.classes)}) than the data has "
            f"({_some(session.classes)}): its outputs would mean something else. Resume with the data of "
            "that run, or start a new one with --pretrained"
        )
    _check_teacher(checkpoint, session, path)
    different = [
        f"{key} was {checkpoint.order.get(key)}, is {value}"
        for key, value in session.order().items()
        if checkpoint.order.get(key) != value
    ]
    if different and checkpoint.progress.batch:
        raise LowbitError(
            f"{path} is in the middle of an epoch, and the batches would not be the same: "
            f"{'; '.join(different)}. Resume with the same settings, or from an epoch's end (model_N)"
        )
    different += environment_differences(checkpoint.environment, session.environment)
    changed = _changed_settings(checkpoint.config, session.config)
    return different + [f"{place} has changed" for place in changed]


def _check_recipe(checkpoint: Checkpoint, session: Session, path: Path) -> None:
    saved, now = checkpoint.recipe, recipe_values(session.recipe)
    if saved is not None:  # with the keys that came after it was saved, at their defaults
        saved = recipe_values(make_recipe(saved, str(path)))
    if _without_distillation(saved) == _without_distillation(now):
        return
    if saved is None or now is None:
        kind = "without a recipe" if saved is None else "with a recipe, and this run has none"
        what = f"{path} was trained {kind}"
    else:
        what = f"{path} was trained with another recipe: {_some(recipe_differences(saved, now), '; ')}"
    raise LowbitError(f"{what}. Resume with the recipe of that run, or start a new one with --pretrained")


def _without_distillation(recipe: dict[str, Any] | None) -> dict[str, Any] | None:
    """A recipe's values without those of distillation, which is done before the first checkpoint."""
    if recipe is None or not recipe.get("reconstruction"):
        return recipe
    kept = {key: value for key, value in recipe["reconstruction"].items() if not key.startswith("distill")}
    return recipe | {"reconstruction": kept}


def _check_teacher(checkpoint: Checkpoint, session: Session, path: Path) -> None:
    digest = session.teacher.digest if session.teacher else None
    if checkpoint.teacher == digest:
        return
    if checkpoint.teacher is None:
        raise LowbitError(f"{path} was trained without a teacher: leave out --teacher, or start a new run")
    named = (checkpoint.config.get("Distillation") or {}).get("teacher")
    if digest is None:
        raise LowbitError(f"{path} was trained with the teacher {named}: resume it with --teacher {named}")
    raise LowbitError(
        f"{path} was trained with the teacher {named} of other weights (SHA-256 {checkpoint.teacher[:12]}…) "
        f"than those of {session.teacher.source} ({digest[:12]}…): resume with the teacher of that run"
    )


def _some(words: list[str], between: str = ", ") -> str:
    return between.join(words[:4]) + (f"{between}… {len(words)} in all" if len(words) > 4 else "")


def _changed_settings(saved: dict[str, Any], config: Config) -> list[str]:
    now = config.model_dump(mode="json")
    # With the keys that came after it was saved, at their defaults.
    saved = validate(saved, {}, "the checkpoint's config").model_dump(mode="json")

    def part(values: Any, place: tuple[str, ...]) -> Any:
        for key in place:
            values = (values or {}).get(key)
        return values

    return [".".join(place) for place in _PLACES if part(saved, place) != part(now, place)]
