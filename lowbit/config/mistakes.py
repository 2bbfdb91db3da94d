"""Pydantic's findings in the user's words: the place, the key as written, and the nearest valid word."""

from __future__ import annotations

import re
from typing import Any

from lowbit.config.transform_ops import OPS
from lowbit.config.yaml_file import KeyPath
from lowbit.errors import nearest

_COMPLETE = ("unknown_key", "value_error", "missing", "union_tag_invalid")  # messages that need no ", got …"


def describe_mistake(detail: dict[str, Any], values: Any, sources: dict[KeyPath, str], origin: str) -> str:
    """One line for one mistake: where it stands, which key, what is wrong, what was probably meant."""
    kind, context = detail["type"], detail.get("ctx", {})
    at = _written_path(detail["loc"], values)
    if kind == "unknown_key":
        at = (*at, context["key"])
    elif kind == "missing":
        at = (*at, detail["loc"][-1])
    place = next((sources[at[:depth]] for depth in range(len(at), -1, -1) if at[:depth] in sources), origin)
    return f"{place}: {'.'.join(map(str, at)) or 'config'}: {_message(kind, context, detail)}"


def _message(kind: str, context: dict[str, Any], detail: dict[str, Any]) -> str:
    message, given = detail["msg"].removeprefix("Value error, "), detail.get("input")
    message = message[:1].lower() + message[1:]
    if kind == "union_tag_invalid":
        given = context["tag"]
        message = f"unknown name {given!r}, valid: {context['expected_tags']}"
    elif kind not in _COMPLETE and not isinstance(given, dict | list):
        message += f", got {given!r}"
    expected = context.get("expected_tags") or context.get("expected") or ""
    guess = nearest(str(given), re.findall(r"'([^']*)'", str(expected)))
    return f'{message}; did you mean "{guess}"?' if guess else message


def _written_path(loc: KeyPath, values: Any) -> KeyPath:
    """The keys as they stand in the file.

    Pydantic adds the chosen member of a union to a path and leaves out the name of a transform operation.
    """
    kept: list[str | int] = []
    here = values
    for key in loc:
        if isinstance(here, dict) and key not in here and len(here) == 1 and next(iter(here)) in OPS:
            kept.append(next(iter(here)))
            here = here[kept[-1]]
        if (isinstance(here, dict) and key in here) or (
            isinstance(here, list) and isinstance(key, int) and key < len(here)
        ):
            kept.append(key)
            here = here[key]
    if isinstance(here, dict) and len(here) == 1 and next(iter(here)) in OPS:
        kept.append(next(iter(here)))
    return tuple(kept)
