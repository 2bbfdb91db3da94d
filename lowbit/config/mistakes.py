"""Pydantic's findings in the user's words: the place, the key as written, and the nearest valid word."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from lowbit.config.base import Section
from lowbit.config.transform_ops import OPS
from lowbit.config.yaml_file import KeyPath, check_text
from lowbit.errors import LowbitError, nearest

SectionType = TypeVar("SectionType", bound=Section)

_SECTION = "expected a section of `key: value` lines"
_WORDS = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": _SECTION,
    "finite_number": "expected a finite number",
    "float_type": "expected a number",
    "invalid-json-value": "expected text, a number, true or false, null, a list or a section",
    "int_type": "expected a whole number",
    "list_type": "expected a list",
    "missing": "missing",
    "model_attributes_type": _SECTION,
    "model_type": _SECTION,
    "string_type": "expected text (put it in quotes)",
    "too_long": "too many entries",
    "too_short": "too few entries",
    "tuple_type": "expected a list",
    "union_tag_not_found": "missing",
}
# Messages that are complete without ", got …".
_COMPLETE = ("missing", "union_tag_invalid", "union_tag_not_found", "unknown_key", "value_error")


def check_section(
    kind: type[SectionType], values: Any, sources: Mapping[KeyPath, str], origin: str
) -> SectionType:
    """The values as a section; every mistake in them is listed with its place.

    `sources` says where a key was written (`file.yaml:7`, `-o …`), `origin` what to say where it does not.
    """
    try:
        check_text(values)
    except ValueError as error:
        raise LowbitError(f"{origin}: {error}") from None
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        messages = [describe_mistake(detail, values, sources, origin) for detail in error.errors()]
        raise LowbitError("\n".join(dict.fromkeys(messages))) from None


def describe_mistake(detail: dict[str, Any], values: Any, sources: Mapping[KeyPath, str], origin: str) -> str:
    """One line for one mistake: where it stands, which key, what is wrong, what was probably meant."""
    kind, context = detail["type"], detail.get("ctx", {})
    at = _written_path(detail["loc"], values)
    if kind == "unknown_key":
        at = (*at, context["key"])
    elif kind == "missing":
        at = (*at, detail["loc"][-1])
    elif kind.startswith("union_tag_"):
        at = (*at, context["discriminator"].strip("'"))
    place = next((sources[at[:depth]] for depth in range(len(at), -1, -1) if at[:depth] in sources), origin)
    return f"{place}: {'.'.join(map(str, at)) or 'config'}: {_message(kind, context, detail)}"


def _message(kind: str, context: dict[str, Any], detail: dict[str, Any]) -> str:
    given, expected = detail.get("input"), context.get("expected_tags") or context.get("expected") or ""
    if kind == "value_error":  # our own words
        return detail["msg"].removeprefix("Value error, ")
    if kind == "union_tag_invalid":
        given = context["tag"]
        message = f"unknown name {given!r}, valid: {expected}"
    else:
        message = _WORDS.get(kind) or detail["msg"][:1].lower() + detail["msg"][1:]
        message = message.replace("input should be", "must be")
    if kind not in _COMPLETE:
        message += f", got {reprlib.repr(given)}"
    guess = nearest(str(given), re.findall(r"'([^']*)'", str(expected))) if isinstance(given, str) else None
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
