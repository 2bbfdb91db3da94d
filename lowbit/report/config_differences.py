"""In which settings runs differ, key by key."""

from __future__ import annotations

import json
from typing import Any

from lowbit.report.run_files import Run
from lowbit.report.words import NOTHING

_OF_NO_INTEREST = ("Global.output_dir",)  # it differs always
_RECIPE = "Recipe"


def config_differences(runs: list[Run]) -> dict[str, list[str]]:
    """The settings that are not the same in all runs, with each run's value in words.

    config_differences(open_runs([Path("runs/a"), Path("runs/b")]))["Global.epochs"]
    """
    flat = [_flat(run.config) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one if key not in _OF_NO_INTEREST)
    found = {key: [_words(key, one.get(key)) for one in flat] for key in keys}
    return {key: words for key, words in found.items() if len(set(words)) > 1}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"Global": {"epochs": 2}}` as `{"Global.epochs": 2}`; a recipe is one value, and lists are, too."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and name != _RECIPE:
            found |= _flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def _words(key: str, value: Any) -> str:
    if value is None:
        return NOTHING
    if key == _RECIPE and isinstance(value, dict):
        return f"{len(value.get('rules', ()))} rules: {json.dumps(value, sort_keys=True)}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
