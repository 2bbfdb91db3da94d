"""Configs and recipes that come with the package, and how one is found by name."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lowbit.config.yaml_file import read_yaml
from lowbit.errors import LowbitError, nearest

CONFIGS = Path(__file__).with_name("bundled")
RECIPES = Path(__file__).parents[1] / "recipe" / "bundled"
_SUFFIXES = (".yaml", ".yml")


def bundled_names(folder: Path) -> list[str]:
    """The names of a folder's YAML files, sorted.

    >>> "digits" in bundled_names(CONFIGS)
    True
    """
    return sorted(file.stem for file in folder.glob("*.yaml"))


def find_file(source: str | os.PathLike[str], bundled: Path, kind: str, folders: tuple[str, ...]) -> Path:
    """The file that is meant: a path, or the name of a bundled one.

    With a separator or a YAML suffix it is a path, and an existing file is taken. Paths into `folders`, where
    the repository (or the project that the file's name is from) has these files, need not exist: there
    the name decides.

    >>> find_file("digits", CONFIGS, "config", ("configs",)).name
    'digits.yaml'
    """
    text, path = os.fspath(source), Path(source)
    names = bundled_names(bundled)
    is_path = "/" in text or os.sep in text or path.suffix in _SUFFIXES
    name = path.stem if path.suffix in _SUFFIXES else path.name
    exists = os.path.exists(path)  # also False for a name that is too long or has a NUL character in it
    if is_path and exists:
        return path
    if name in names and not path.is_absolute() and path.parent.name in ("", *folders):
        return bundled / f"{name}.yaml"
    guess = nearest(name, names)
    hint = f'did you mean "{guess}"?' if guess else f"`lowbit {_LISTED_BY[kind]}` lists those of lowbit"
    if is_path:
        raise LowbitError(f"no {kind} file {path}; {hint}")
    if exists:
        hint = f"for the file of that name write {path.resolve()}"
    raise LowbitError(f'unknown {kind} "{name}": {hint}')


_LISTED_BY = {"recipe": "recipes", "config": "models"}


@dataclass(frozen=True, kw_only=True)
class ConfigEntry:
    """A bundled config: what it trains, on what."""

    name: str
    description: str
    model: str

    def to_dict(self) -> dict[str, str]:
        """As plain values for JSON."""
        return asdict(self)


def list_configs() -> list[ConfigEntry]:
    """The configs that come with the package, by name; each can be given as `-c NAME`.

    >>> [config.model for config in list_configs() if config.name == "digits"]
    ['resnet20']
    """
    return [_config_entry(CONFIGS / f"{name}.yaml") for name in bundled_names(CONFIGS)]


def _config_entry(file: Path) -> ConfigEntry:
    values: dict[str, Any] = read_yaml(file)[0]
    # The first comment says what the config is for, and then the command that uses it.
    first = file.read_text("utf-8").partition("\n")[0].removeprefix("# ")
    description = re.split(r": `lowbit", first)[0]
    return ConfigEntry(name=file.stem, description=description, model=values["Arch"]["name"])
