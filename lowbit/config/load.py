"""From a config file and `-o` overrides to a validated Config, with errors that say where and what."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lowbit.config.mistakes import describe_mistake
from lowbit.config.schema import Config
from lowbit.config.yaml_file import KeyPath, read_yaml
from lowbit.errors import LowbitError


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Reads a config, applies `Section.key=value` overrides in their order, and validates the result.

    load_config("configs/digits.yaml", ["Global.epochs=2", "DataLoader.Train.sampler.batch_size=8"])
    """
    path = Path(path)
    values, lines = read_yaml(path)
    if not isinstance(values, dict):
        raise LowbitError(
            f"{path}: expected sections such as `Global:` and `Arch:`, got {type(values).__name__}"
        )
    sources = {at: f"{path}:{line}" for at, line in lines.items()}
    for override in overrides:
        at = apply_override(values, override)
        for depth in range(1, len(at) + 1):  # also the sections that only the override brought in
            if depth == len(at) or at[:depth] not in sources:
                sources[at[:depth]] = f"-o {override}"
    return validate(values, sources, str(path))


def validate(values: dict[str, Any], sources: dict[KeyPath, str], origin: str) -> Config:
    """The values as a Config; every mistake in them is listed with its place."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        messages = [describe_mistake(detail, values, sources, origin) for detail in error.errors()]
        raise LowbitError("\n".join(dict.fromkeys(messages))) from None


def apply_override(values: dict[str, Any], override: str) -> KeyPath:
    """Sets one `Section.key=value`; the value is YAML. List items go by index. Returns where it went.

    >>> values = {"Global": {"epochs": 90}}
    >>> apply_override(values, "Global.epochs=2")
    ('Global', 'epochs')
    >>> values
    {'Global': {'epochs': 2}}
    """
    name, equals, text = override.partition("=")
    if not equals or not name.strip():
        raise LowbitError(f"-o {override}: expected Section.key=value, such as -o Global.epochs=2")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise LowbitError(f"-o {override}: the value is not valid YAML; quote it if it is text") from None
    keys = name.strip().split(".")
    at: list[str | int] = []
    here: Any = values
    for position, key in enumerate(keys):
        last = position == len(keys) - 1
        if isinstance(here, list):
            if not key.isdigit() or int(key) >= len(here):
                raise LowbitError(
                    f"-o {override}: {'.'.join(map(str, at))} is a list of {len(here)}; "
                    f"expected an index from 0 to {len(here) - 1}, got {key!r}"
                )
            key = int(key)
        elif not isinstance(here, dict):
            raise LowbitError(f"-o {override}: {'.'.join(map(str, at))} is a value, it has no key {key!r}")
        at.append(key)
        if last:
            here[key] = value
        elif isinstance(here, dict):
            if here.get(key) is None:  # a section the file leaves out; its keys are validated like any other
                here[key] = {}
            here = here[key]
        else:
            here = here[key]
    return tuple(at)


def dump_config(config: Config) -> str:
    """The config as YAML, complete: what is saved with every run and can be trained again."""
    return yaml.safe_dump(
        config.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True
    )
