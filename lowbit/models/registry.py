"""The models that have a name: each builder is registered once, with the spellings that users know it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from paddle.nn import Layer

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


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A registered model: its name, its other spellings, and its builder's first line of documentation."""

    name: str
    aliases: tuple[str, ...]
    description: str

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)


def list_models() -> list[ModelEntry]:
    """The registered models, sorted by name.

    >>> [model.aliases for model in list_models() if model.name == "resnet18"]
    [('ResNet18',)]
    """
    return [
        ModelEntry(
            name=name,
            aliases=tuple(alias for alias, meant in _ALIASES.items() if meant == name),
            description=(_BUILDERS[name].__doc__ or "").strip().partition("\n")[0],
        )
        for name in model_names()
    ]


def find_builder(name: str) -> Builder | None:
    """The builder of a registered name or of another spelling of it; None where there is no such model."""
    return _BUILDERS.get(_ALIASES.get(name, name))
