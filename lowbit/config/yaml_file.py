"""YAML with line numbers, so that an error can say where; a key given twice is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from lowbit.errors import LowbitError

KeyPath = tuple[str | int, ...]

# PyYAML lets Python's own errors through: `!!int ''`, a number of 5000 digits, lists a thousand deep.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
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
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise LowbitError(f"no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
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
        return yaml.load(text, _Loader)  # a SafeLoader
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
        return _without_sharing(loader.construct_document(node)), lines
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
