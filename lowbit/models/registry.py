"""The models that have a name: each builder is registered once, with the spellings that users know it by."""

from __future__ import annotations

from collections.abc import Callable

from paddle.nn import Layer

from lowbit.errors import LowbitError, did_you_mean

Builder = Callable[..., Layer]

_BUILDERS: dict[str, Builder] = {}
_ALIASES: dict[str, str] = {}


def register_model(name: str, *aliases: str) -> Callable[[Builder], Builder]:
    """Register a builder, called as `builder(num_classes, **options)`, under a name and its other spellings.

    >>> @register_model("tiny", "Tiny")
    ... def tiny(num_classes):
    ...     return paddle.nn.Linear(4, num_classes)
    """

    def add(builder: Builder) -> Builder:
        for word in (name, *aliases):
            if word in _BUILDERS or word in _ALIASES:
                raise ValueError(f'model name "{word}" is registered twice')
        _BUILDERS[name] = builder
        _ALIASES.update(dict.fromkeys(aliases, name))
        return builder

    return add


def model_names() -> list[str]:
    """The registered names, sorted, without their other spellings."""
    return sorted(_BUILDERS)


def model_aliases() -> dict[str, str]:
    """Other spellings that `build_model` takes, each with the name it stands for."""
    return dict(_ALIASES)


def find_builder(name: str) -> Builder:
    """The builder of a registered name or of another spelling of it."""
    builder = _BUILDERS.get(_ALIASES.get(name, name))
    if builder is None:
        raise LowbitError(
            f'unknown model "{name}": {did_you_mean(name, [*_BUILDERS, *_ALIASES])} '
            '(a model of your own is named as "package.module:Class")'
        )
    return builder
