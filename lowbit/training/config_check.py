"""Whether configs can be trained: read, every name in them known, and on request the model built."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import paddle
from paddle.nn import Layer

from lowbit.config import Config, load_config
from lowbit.data import compose
from lowbit.errors import LowbitError
from lowbit.models import build_model, check_name

_USUAL_CLASSES = 1000  # where a config leaves them to the data


@dataclass(frozen=True, kw_only=True)
class ConfigCheck:
    """One config: the model it names, and what is wrong with it."""

    file: str
    model: str | None = None
    loads: bool = False
    builds: bool | None = None  # None: not tried
    parameters: int | None = None
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.reason is None

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)


def read_config(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
) -> Config:
    """`load_config`, and an error where no registry knows the model or an operation cannot be carried out.

    >>> read_config("digits").Arch.name
    'resnet20'
    """
    config = load_config(os.fspath(path), overrides, options)
    try:
        check_name(config.Arch.name)
        for split in (config.DataLoader.Train, config.DataLoader.Eval):
            if split is not None:
                compose(split.dataset.transform_ops)
    except LowbitError as error:
        raise LowbitError(f"{path}: {error}") from None
    return config


def check_config(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), *, build: bool = False
) -> ConfigCheck:
    """What `lowbit config check` says about one file; with `build` its model is built, too.

    >>> check_config("digits").ok
    True
    """
    try:
        config = read_config(path, overrides)
    except LowbitError as error:
        return ConfigCheck(file=str(path), reason=str(error))
    found: dict[str, Any] = {"file": str(path), "model": config.Arch.name, "loads": True}
    if not build:
        return ConfigCheck(**found)
    try:
        model = _build(config)
    except LowbitError as error:
        return ConfigCheck(**found, builds=False, reason=str(error))
    count = sum(math.prod(parameter.shape) for parameter in model.parameters())
    return ConfigCheck(**found, builds=True, parameters=count)


def _build(config: Config) -> Layer:
    """The model, without values for its weights where its constructor does not look at them."""
    classes = config.num_classes or _USUAL_CLASSES
    try:
        with paddle.LazyGuard():
            return build_model(config.Arch.name, classes, **config.Arch.kwargs)
    except LowbitError:
        return build_model(config.Arch.name, classes, **config.Arch.kwargs)
