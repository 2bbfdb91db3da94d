"""Reading YAML: duplicate keys, anchors and odd characters refused; mistakes named with the nearest key."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from yaml.reader import ReaderError

from lowbit.config.base import Section
from lowbit.config.batch_ops import BATCH_OPS
from lowbit.config.transform_ops import OPS
from lowbit.errors import LowbitError, nearest

_NAMED = OPS.keys() | BATCH_OPS.keys()  # sections that stand under their name in a list

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


def describe_mistake(
    detail: Mapping[str, Any], values: Any, sources: Mapping[KeyPath, str], origin: str
) -> str:
    """One line for one mistake: its place, the key, what is wrong, what was probably meant."""
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


def _message(kind: str, context: dict[str, Any], detail: Mapping[str, Any]) -> str:
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
    here: Any = values
    for key in loc:
        if isinstance(here, dict) and key not in here and len(here) == 1 and next(iter(here)) in _NAMED:
            kept.append(next(iter(here)))
            here = here[kept[-1]]
        if isinstance(here, list) and isinstance(key, int) and key < len(here):  # noqa: SIM114
            kept.append(key)
            here = here[key]
        elif isinstance(here, dict) and key in here:
            kept.append(key)
            here = here[key]
    if isinstance(here, dict) and len(here) == 1 and next(iter(here)) in _NAMED:
        kept.append(next(iter(here)))
    return tuple(kept)


# YAML with line numbers, for error messages.


KeyPath = tuple[str | int, ...]

# PyYAML lets Python's own errors through: `!!int ''`, a number of 5000 digits, lists a thousand deep.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
_MOST_BYTES = 10_000_000
_FORBIDDEN = re.compile("[\0\ud800-\udfff]")  # NUL and lone surrogates, which "\\0" and "\\ud800" stand for
_MOST_ENTRIES = 100_000  # aliases of aliases can make a small file mean more than any memory holds


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but `2024-05-01` is text: a folder's name, never a date."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_yaml(path: Path) -> tuple[Any, dict[KeyPath, int]]:
    """The document and the line of every key and list item in it."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise LowbitError(f"{path}: more than {_MOST_BYTES} bytes: not a config")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise LowbitError(f"no config file {path}") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL character in the path
        raise LowbitError(f"cannot read the config file {path}: {error}") from None
    try:
        return _parse(text, path)
    except RecursionError:
        raise LowbitError(f"{path}: nested too deeply, or an alias (*name) inside of itself") from None
    except _YAML_ERRORS as error:
        raise LowbitError(f"{path}{_line(error, text)}: not valid YAML: {_problem(error)}") from None


def _line(error: Exception, text: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f":{error.problem_mark.line + 1}"
    return f":{text.count(chr(10), 0, error.position) + 1}" if isinstance(error, ReaderError) else ""


def _problem(error: Exception) -> str:
    if isinstance(error, ReaderError):
        return f"the character U+{error.character:04X} is not allowed"
    return getattr(error, "problem", None) or str(error)


def parse_yaml(text: str) -> Any:
    """The value of a piece of YAML, such as the right side of an override; a ValueError if it is none.

    >>> parse_yaml("[3, 32, 32]"), parse_yaml("2024-05-01")
    ([3, 32, 32], '2024-05-01')
    """
    try:
        return check_text(yaml.load(text, _Loader))  # a SafeLoader
    except _YAML_ERRORS as error:
        raise ValueError(str(error)) from None


def _parse(text: str, path: Path) -> tuple[Any, dict[KeyPath, int]]:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        if node is None:
            return {}, lines
        _note_lines(loader, node, (), lines, path)
        return check_text(_without_sharing(loader.construct_document(node))), lines
    finally:
        loader.dispose()


def _note_lines(loader: _Loader, node: yaml.Node, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if len(lines) > _MOST_ENTRIES:
        raise LowbitError(f"{path}: more than {_MOST_ENTRIES} entries (counting aliases): not a config")
    if isinstance(node, yaml.MappingNode):
        seen: dict[Any, int] = {}
        merged = [value for key, value in node.value if key.tag.endswith(":merge")]
        for key, value in node.value:
            if key.tag.endswith(":merge"):
                continue
            line, word = key.start_mark.line + 1, _key(loader, key, path)
            if word in seen:
                raise LowbitError(
                    f'{path}:{line}: the key "{word}" stands here for the second time '
                    f"(first in line {seen[word]}); remove one"
                )
            seen[word] = line
            lines.setdefault((*at, word), line)
            _note_lines(loader, value, (*at, word), lines, path)
        for value in merged:  # `<<: *other`, after the mapping's own keys, which win
            for mapping in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                _note_lines(loader, mapping, at, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_lines(loader, item, (*at, index), lines, path)


def _key(loader: _Loader, node: yaml.Node, path: Path) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise LowbitError(f"{path}:{node.start_mark.line + 1}: a key must be a word, not a list or a section")
    return loader.construct_object(node)


def _without_sharing(value: Any) -> Any:
    """What `&name` and `*name` share becomes copies: an override of one must not change the other."""
    if isinstance(value, dict):
        return {key: _without_sharing(item) for key, item in value.items()}
    return [_without_sharing(item) for item in value] if isinstance(value, list) else value


def check_text(value: Any) -> Any:
    """The value itself; text with characters that no path and no file in UTF-8 can have is a ValueError."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_text(key)
            check_text(item)
    elif isinstance(value, list):
        for item in value:
            check_text(item)
    elif isinstance(value, str) and (found := _FORBIDDEN.search(value)):
        raise ValueError(f"the character U+{ord(found[0]):04X} is not allowed")
    return value
