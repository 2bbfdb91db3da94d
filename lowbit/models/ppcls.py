"""PaddleClas's backbones by name, where its package `ppcls` can be imported.

`ppcls` is either on Python's path (a checkout of PaddleClas), or inside of the PyPI package `paddleclas`. The
latter's own `__init__` imports programs that models do not need, such as faiss, so it is not run: `ppcls` is
found in its folder. No other module is ever imported here, whatever a config or checkpoint names.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

from paddle.nn import Layer

from lowbit.errors import LowbitError, did_you_mean
from lowbit.models.registry import ModelEntry

PREFIX = "ppcls:"  # "ppcls:ResNet18" is PaddleClas's, also where lowbit has a model of that name
_PACKAGE, _WHEEL = "ppcls", "paddleclas"
HOW_TO_INSTALL = (
    "pip install 'lowbit[paddleclas]' && pip install --no-deps paddleclas==2.6.0 "
    "(or put a checkout of PaddleClas on PYTHONPATH)"
)


def ppcls_is_installed() -> bool:
    """Whether `ppcls` is there, without importing it.

    >>> ppcls_is_installed()
    True
    """
    return _PACKAGE in sys.modules or find_spec(_PACKAGE) is not None or _folder_in_wheel() is not None


def ppcls_names() -> list[str]:
    """The names of PaddleClas's classification models, sorted; an error where `ppcls` cannot be imported.

    >>> "PPLCNet_x1_0" in ppcls_names()
    True
    """
    return sorted(_constructors())


def list_ppcls_models() -> list[ModelEntry]:
    """PaddleClas's models, sorted by name, as `list_models` has lowbit's.

    >>> list_ppcls_models()[0].name
    'AlexNet'
    """
    return [
        ModelEntry(name=name, aliases=(), description=f"PaddleClas: {_file_of(found)}")
        for name, found in sorted(_constructors().items())
    ]


def find_ppcls(name: str) -> Callable[..., Layer]:
    """What constructs the model of that name, with or without the prefix `ppcls:`."""
    word = name.removeprefix(PREFIX)
    found = _constructors().get(word)
    if found is None:
        raise LowbitError(f'PaddleClas has no model "{word}": {_some_names(word)}')
    return found


def missing_ppcls(name: str) -> str:
    """The hint for a name that only PaddleClas may know, where it is not installed."""
    return f'if "{name}" is a model of PaddleClas, install it: {HOW_TO_INSTALL}'


def _some_names(word: str) -> str:
    hint = did_you_mean(word, _constructors())
    return hint if hint.startswith("did you mean") else "`lowbit models --from ppcls` lists its models"


@cache
def _constructors() -> dict[str, Callable[..., Layer]]:
    backbones = _import_backbones()
    members = {name: vars(backbones)[name] for name in backbones.__all__ if name in vars(backbones)}
    return {name: found for name, found in members.items() if callable(found) and _takes_classes(found)}


def _takes_classes(constructor: Callable[..., Layer]) -> bool:
    parameters = inspect.signature(constructor).parameters.values()
    return any(p.name == "class_num" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _file_of(constructor: Callable[..., Layer]) -> str:
    return constructor.__module__.rpartition(".")[2]


def _import_backbones() -> ModuleType:
    if not ppcls_is_installed():
        raise LowbitError(f"PaddleClas's models need the package ppcls: {HOW_TO_INSTALL}")
    folder = _folder_in_wheel()
    if _PACKAGE not in sys.modules and find_spec(_PACKAGE) is None and folder is not None:
        _add_package(folder)
    try:
        logger = importlib.import_module(f"{_PACKAGE}.utils.logger")
        if getattr(logger, "_logger", True) is None:  # its models log while they are built
            logger.init_logger(log_level=logging.ERROR)  # to stdout, where commands print their results
        return importlib.import_module(f"{_PACKAGE}.arch.backbone")
    except Exception as error:  # a checkout may hold anything
        raise LowbitError(
            f"PaddleClas's package ppcls cannot be imported ({type(error).__name__}: {error}): "
            f"{HOW_TO_INSTALL}"
        ) from error


def _folder_in_wheel() -> Path | None:
    """The folder of `ppcls` inside of the package paddleclas, which is found without importing it."""
    found = find_spec(_WHEEL)
    for folder in (found and found.submodule_search_locations) or ():
        if (Path(folder) / _PACKAGE).is_dir():
            return Path(folder) / _PACKAGE
    return None


def _add_package(folder: Path) -> None:
    """Make `ppcls` importable from a folder: as if the folder around it were on the path, for it alone."""
    spec = ModuleSpec(_PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[_PACKAGE] = module_from_spec(spec)
