"""From a config file and `-o` overrides to a validated Config, with errors that say where and what."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from lowbit.config.schema import Config
from lowbit.config.transform_ops import prepared_size
from lowbit.config.yaml_file import KeyPath, check_section, parse_yaml, read_yaml
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


def load_config(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
) -> Config:
    """Reads a config, applies `Section.key=value` overrides in their order, and validates the result.

    `options` are settings that have their own command-line option: `{"--epochs": ("Global.epochs", 2)}`.

    `path` is a file, or the name of a config that comes with the package (`list_configs`).

    load_config("digits", ["Global.epochs=2", "DataLoader.Train.sampler.batch_size=8"])
    """
    path = find_file(path, CONFIGS, "config", ("configs",))
    values, lines = read_yaml(path)
    if not isinstance(values, dict):
        raise LowbitError(
            f"{path}: expected sections such as `Global:` and `Arch:`, got {type(values).__name__}"
        )
    sources = {at: f"{path}:{line}" for at, line in lines.items()}
    config = _override(values, sources, str(path), overrides, options or {})
    _check_image_shape(config, sources, str(path))
    return config


def _check_image_shape(config: Config, sources: dict[KeyPath, str], origin: str) -> None:
    """The exported model takes what evaluation prepares: a size that is not given is evaluation's."""
    evaluation = config.DataLoader.Eval
    size = prepared_size(evaluation.dataset.transform_ops if evaluation else config.Infer.transforms)
    given = config.Global.image_shape
    if size is None or size == given[1:]:
        return
    if "image_shape" not in config.Global.model_fields_set:
        config.Global.image_shape = (3, *size)
        return
    height, width = size
    at = ("Global", "image_shape")
    where = "DataLoader.Eval.dataset.transform_ops" if evaluation else "Infer.transforms"
    raise LowbitError(
        f"{sources.get(at, origin)}: Global.image_shape: [3, {given[1]}, {given[2]}], but {where} gives "
        f"images of [3, {height}, {width}]; make them equal"
    )


def override_config(config: Config, overrides: Iterable[str]) -> Config:
    """A config with `Section.key=value` overrides applied, such as one out of a checkpoint."""
    return _override(config.model_dump(mode="json"), {}, "config", overrides, {})


def with_data_path(config: Config, path: str | Path) -> Config:
    """A config that trains and evaluates on the images of a folder or archive, prepared as it says.

    with_data_path(load_config("my_images"), "photos/")
    """
    values = config.model_dump(mode="json")
    for section, part in (("Train", "train"), ("Eval", "val")):
        if (split := values["DataLoader"][section]) is not None:
            ops = {key: split["dataset"][key] for key in ("transform_ops", "batch_transform_ops")}
            split["dataset"] = {"name": "AutoDataset", "path": str(path), "split": part} | ops
    return validate(values, {}, "--data-path")


def _override(
    values: dict[str, Any],
    sources: dict[KeyPath, str],
    origin: str,
    overrides: Iterable[str],
    options: Mapping[str, tuple[str, Any]],
) -> Config:
    settings = [(f"-o {override}", *parse_override(override)) for override in overrides]
    settings += [(option, name, value) for option, (name, value) in options.items()]
    for source, name, value in settings:
        at = set_value(values, name, value, source)
        for replaced in [key for key in sources if key[: len(at)] == at]:
            del sources[replaced]
        for depth in range(1, len(at) + 1):  # also the sections that only the override brought in
            sources.setdefault(at[:depth], source)
    _rename_qconfigdir(values, sources, origin)
    return validate(values, sources, origin)


def _rename_qconfigdir(values: dict[str, Any], sources: dict[KeyPath, str], origin: str) -> None:
    """`qconfigdir`, under which low-precision training's original has its recipe, is `Recipe` here."""
    if "qconfigdir" not in values:
        return
    place = sources.pop(("qconfigdir",), origin)
    if values.get("Recipe") is not None:
        raise LowbitError(f"{place}: qconfigdir and Recipe both say what is quantized; give one")
    values["Recipe"] = values.pop("qconfigdir")
    sources[("Recipe",)] = place


def validate(values: dict[str, Any], sources: dict[KeyPath, str], origin: str) -> Config:
    """The values as a Config; every mistake in them is listed with its place."""
    _refuse_other_tasks(values, sources, origin)
    return check_section(Config, values, sources, origin)


def _refuse_other_tasks(values: dict[str, Any], sources: dict[KeyPath, str], origin: str) -> None:
    """One line for PaddleClas's files that train something else than one classifier of images."""
    arch = values.get("Arch")
    place = sources.get(("Arch",), origin)
    if not isinstance(arch, dict):
        return
    if "models" in arch or arch.get("name") == "DistillationModel":
        raise LowbitError(
            f"{place}: Arch: distillation between models of one config (DistillationModel) is not supported; "
            "train the student's own config and name a teacher (--teacher)"
        )
    if "Backbone" in arch or arch.get("name") == "RecModel":
        raise LowbitError(
            f"{place}: Arch: metric learning (Backbone, Neck and Head) is not supported; lowbit trains "
            "classifiers"
        )


def parse_override(override: str) -> tuple[str, Any]:
    """`Section.key=value` as the key and the value, which is YAML.

    >>> parse_override("Global.image_shape=[3, 32, 32]")
    ('Global.image_shape', [3, 32, 32])
    """
    name, equals, text = override.partition("=")
    if not equals or not all(name.strip().split(".")):
        raise LowbitError(f"-o {override}: expected Section.key=value, such as -o Global.epochs=2")
    try:
        return name.strip(), parse_yaml(text)
    except ValueError:
        raise LowbitError(f"-o {override}: the value is not valid YAML; quote it if it is text") from None


def set_value(values: dict[str, Any], name: str, value: Any, source: str) -> KeyPath:
    """Sets `Section.key`, list items by their index, and returns where that is.

    >>> values = {"Global": {"epochs": 90}}
    >>> set_value(values, "Global.epochs", 2, "--epochs"), values
    (('Global', 'epochs'), {'Global': {'epochs': 2}})
    """
    at: list[str | int] = []
    here: Any = values
    *sections, last = name.split(".")
    for key in sections:
        at.append(_key_of(here, key, at, source))
        if isinstance(here, dict) and here.get(at[-1]) is None:
            here[at[-1]] = {}  # a section the file leaves out; its keys are validated like any other
        here = here[at[-1]]
    at.append(_key_of(here, last, at, source))
    here[at[-1]] = value
    return tuple(at)


def _key_of(container: Any, key: str, at: list[str | int], source: str) -> str | int:
    where = ".".join(map(str, at))
    if isinstance(container, dict):
        return key
    if not isinstance(container, list):
        raise LowbitError(f"{source}: {where} is a value, it has no key {key!r}")
    index = int(key) if key.isdecimal() and len(key) < 10 else len(container)
    if index >= len(container):
        expected = f"an index from 0 to {len(container) - 1}" if container else "no index at all"
        raise LowbitError(
            f"{source}: {where} is a list of {len(container)}; expected {expected}, got {key!r}"
        )
    return index


def dump_config(config: Config) -> str:
    """The config as YAML, complete: what is saved with every run and can be trained again."""
    values = config.model_dump(mode="json")
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    # A few characters PyYAML writes as they are and does not read back; escaped it reads them.
    return text if parse_yaml(text) == values else yaml.safe_dump(values, sort_keys=False)


# Settings that have an option, or an argument of a Python function.
OPTIONS = {
    "output_dir": "Global.output_dir",
    "epochs": "Global.epochs",
    "device": "Global.device",
    "pretrained": "Global.pretrained_model",
    "resume": "Global.checkpoints",
    "recipe": "Recipe",
    "teacher": "Distillation.teacher",
    "executor": "Global.executor",
    "finetune_epochs": "Global.finetune_epochs",
    "amp_level": "AMP.level",
    "amp_dtype": "AMP.dtype",
    "ema": "Global.ema",
    "early_stop": "Global.early_stop",
    "model": "Arch.name",
    "batch_size": "DataLoader.Train.sampler.batch_size",
    "lr": "Optimizer.lr.learning_rate",
}


def given_options(**options: Any) -> dict[str, tuple[str, Any]]:
    """The options that were given, those that are not None, as `load_config` takes them.

    >>> given_options(epochs=2, device=None)
    {'--epochs': ('Global.epochs', 2)}
    """
    level, dtype = options.get("amp_level"), options.get("amp_dtype")
    if dtype is not None and level is None:
        raise LowbitError(f"--amp_dtype {dtype} has no effect without --amp_level; add --amp_level O1 or O2")
    found = {
        f"--{name.replace('_', '-')}": (
            OPTIONS[name],
            os.fspath(value) if isinstance(value, os.PathLike) else value,
        )
        for name, value in options.items()
        if value is not None
    }
    if level is not None:
        found["--use-amp"] = ("AMP.use_amp", True)  # PaddleClas's files say False
    return found
