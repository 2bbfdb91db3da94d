"""From a name to a model: a registered one, one of PaddleClas's, or the user's own by import path."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from paddle.nn import Layer
from paddle.utils import unique_name

from lowbit.errors import LowbitError, did_you_mean
from lowbit.models.ppcls import PREFIX, find_ppcls, missing_ppcls, ppcls_is_installed, ppcls_names
from lowbit.models.registry import find_builder, model_aliases, model_names
from lowbit.models.vision import logits_in_evaluation

# What a constructor may call the number of classes: paddle.vision's word, then PaddleClas's.
_CLASS_COUNT_WORDS = ("num_classes", "class_num")
_WITH_AUXILIARY = ("GoogLeNet",)  # models of PaddleClas that return several tensors also in evaluation


def build_model(name: str, num_classes: int, **kwargs: Any) -> Layer:
    """Build a model with fresh weights.

    `name` is a registered name ("resnet20"), PaddleClas's spelling of one ("ResNet18"), any other model of
    PaddleClas's where its package `ppcls` is installed ("PPLCNet_x1_0"; "ppcls:ResNet18" for its own version
    of one that lowbit has), or "package.module:Class" for a model of the user's own.
    `kwargs` go to its constructor; one that it does not take is an error. Call `check_trusted` first for a
    name that comes out of a file: a model of the user's own is imported, which runs its code.

    >>> build_model("resnet20", num_classes=10)
    >>> build_model("PPLCNet_x1_0", num_classes=10, dropout_prob=0.1)
    >>> build_model("my_package.my_module:MyNet", num_classes=10, width=32)
    """
    if num_classes < 1:
        raise LowbitError(f"a model needs at least one class, not {num_classes}: set the number of classes")
    with _fixed_parameter_names():
        if ":" in name and not name.startswith(PREFIX):
            return _build_own(name, num_classes, kwargs)
        builder = find_builder(name)
        if builder is None:
            return _build_ppcls(name, num_classes, kwargs)
        _check_options(name, builder, kwargs)
        return builder(num_classes, **kwargs)


def check_name(name: str) -> None:
    """Raise the error that `build_model` would raise for a name that no registry knows; nothing is built.

    A model of the user's own ("package.module:Class") is not imported, and so not checked.

    >>> check_name("resnet20")
    """
    if find_builder(name) is None and (":" not in name or name.startswith(PREFIX)):
        _find_ppcls(name)


def check_trusted(name: str, source: str | Path, *, trust: bool | str = False) -> None:
    """Stop where a file names a model whose code would have to be imported, unless the user trusts it.

    `trust` is True (`--trust-code`), or the name of the model that the user gave. Models of lowbit and of
    PaddleClas need no trust, nor does a paddle.nn.Layer class of a module that this process has already
    imported.

    >>> check_trusted("resnet20", "runs/digits/checkpoints/best.lowbit")
    >>> check_trusted("my_net:MyNet", "my.lowbit", trust="my_net:MyNet")
    """
    if ":" not in name or name.startswith(PREFIX) or trust is True or trust == name:
        return
    module, _, attribute = name.partition(":")
    found = getattr(sys.modules.get(module), attribute, None)
    if isinstance(found, type) and issubclass(found, Layer):
        return
    raise LowbitError(
        f'{source} names the model "{name[:100]}": lowbit imports no code because a file asks for it. If you '
        "trust the file, add --trust-code, or name the model yourself (-c CONFIG, -o Arch.name=…, or --model)"
    )


@contextmanager
def _fixed_parameter_names() -> Iterator[None]:
    """Let a second model in this process have the parameter names that its constructor fixes.

    Paddle refuses a name that another model has. Numbered names go on where they were: they stay unique.
    """
    generator, checker = unique_name.switch()
    unique_name.switch(generator)  # with a new checker
    try:
        yield
    finally:
        unique_name.switch(generator, checker)


def _find_ppcls(name: str) -> Callable[..., Any]:
    if not name.startswith(PREFIX):
        known = [*model_names(), *model_aliases()]
        own = 'your own model is named as "package.module:Class"'
        if not ppcls_is_installed():
            hint = f"{did_you_mean(name, known)} ({own}; {missing_ppcls(name)})"
            raise LowbitError(f'unknown model "{name}": {hint}')
        if name not in ppcls_names():
            raise LowbitError(
                f'unknown model "{name}": {did_you_mean(name, [*known, *ppcls_names()])} ({own})'
            )
    return find_ppcls(name)


def _build_ppcls(name: str, num_classes: int, kwargs: dict[str, Any]) -> Layer:
    constructor = _find_ppcls(name)
    for word in ("pretrained", "use_ssld"):
        if kwargs.get(word):
            raise LowbitError(
                f'model "{name}": lowbit downloads no weights ({word}); give a file by --pretrained or '
                "Arch.pretrained"
            )
    given = {"class_num": num_classes, **kwargs}
    if "pretrained" in inspect.signature(constructor).parameters:
        given["pretrained"] = False  # some download weights by default
    model = _construct(name, constructor, given)
    _check_swallowed(name, constructor, model, kwargs)
    return logits_in_evaluation(model) if name.removeprefix(PREFIX) in _WITH_AUXILIARY else model


def _check_swallowed(
    name: str, constructor: Callable[..., Any], model: Layer, kwargs: dict[str, Any]
) -> None:
    """An error for an option that a class of PaddleClas's takes as `**kwargs` and never looks at.

    One that is 0, false or null asks for nothing: PaddleClas's own configs have such ones.
    """
    own = [vars(kind).get("__init__") for kind in type(model).__mro__]
    makers = [maker for maker in (constructor, *own) if inspect.isfunction(maker)]
    takes_any = inspect.signature(type(model).__init__).parameters.values()
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes_any):
        return  # it has raised a TypeError
    known = {word for maker in makers for word in inspect.signature(maker).parameters} - {"self", "kwargs"}
    read = {word for maker in makers for word in maker.__code__.co_consts}  # as in kwargs["word"]
    for word in kwargs:
        if kwargs[word] and word not in known and word not in read:
            raise LowbitError(f'model "{name}" has no option "{word}": {did_you_mean(word, known)}')


def _build_own(path: str, num_classes: int, kwargs: dict[str, Any]) -> Layer:
    constructor = _import_constructor(path)
    if isinstance(constructor, type) and not issubclass(constructor, Layer):
        raise LowbitError(f'"{path}" is not a paddle.nn.Layer: derive the class from paddle.nn.Layer')
    kwargs = dict(kwargs)
    parameters = inspect.signature(constructor).parameters
    for word in _CLASS_COUNT_WORDS:
        if word in parameters:
            kwargs.setdefault(word, num_classes)
            break
    _check_options(path, constructor, kwargs)
    return _construct(path, constructor, kwargs)


def _construct(path: str, constructor: Callable[..., Any], kwargs: dict[str, Any]) -> Layer:
    try:
        model = constructor(**kwargs)
    except Exception as error:  # code that is not lowbit's may raise anything
        raise LowbitError(
            f'building "{path}" failed at {_place_of(error)}: {type(error).__name__}: {error}'
        ) from error
    if not isinstance(model, Layer):
        raise LowbitError(f'"{path}" gave a {type(model).__name__}, not a paddle.nn.Layer')
    return model


def _import_constructor(path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise LowbitError(f'"{path}" is not a model: write "package.module:Class"')
    module = _import_module(module_name, path)
    if not hasattr(module, attribute):
        public = [word for word, value in vars(module).items() if callable(value) and word[0] != "_"]
        hint = did_you_mean(attribute, public) if public else "it defines no class or function."
        raise LowbitError(f'module "{module_name}" ({module.__file__}) has no "{attribute}": {hint}')
    constructor = getattr(module, attribute)
    if not callable(constructor):
        raise LowbitError(f'"{path}" is a {type(constructor).__name__}, not a paddle.nn.Layer class')
    return constructor


def _import_module(module_name: str, path: str) -> ModuleType:
    # A user's model is in the config's folder, which is not on the path of the command `lowbit`.
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise LowbitError(
                f'no module "{missing}" for the model "{path}": run from the folder that holds it '
                f"(now {folder}), or add that folder to PYTHONPATH"
            ) from error
        raise _import_failed(module_name, path, error) from error
    except Exception as error:
        raise _import_failed(module_name, path, error) from error


def _import_failed(module_name: str, path: str, error: Exception) -> LowbitError:
    return LowbitError(
        f'importing "{module_name}" for the model "{path}" failed at {_place_of(error)}: '
        f"{type(error).__name__}: {error}"
    )


def _place_of(error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{place.filename}:{place.lineno}"


def _check_options(name: str, constructor: Callable[..., Any], options: dict[str, Any]) -> None:
    parameters = inspect.signature(constructor).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    valid = [word for word in parameters if word not in _CLASS_COUNT_WORDS]
    for word in options:
        if word not in parameters:
            hint = did_you_mean(word, valid) if valid else "it takes none."
            raise LowbitError(f'model "{name}" has no option "{word}": {hint}')
    required = inspect.Parameter.empty
    missing = [w for w in valid if parameters[w].default is required and _is_needed(parameters[w], options)]
    if missing:
        raise LowbitError(f'model "{name}" needs a value for: {", ".join(missing)}')


def _is_needed(parameter: inspect.Parameter, options: dict[str, Any]) -> bool:
    return parameter.kind is not inspect.Parameter.VAR_POSITIONAL and parameter.name not in options
