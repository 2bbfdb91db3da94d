"""YAML with line numbers, so that an error can say where; a key given twice is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lowbit.errors import LowbitError

KeyPath = tuple[str | int, ...]


def read_yaml(path: Path) -> tuple[Any, dict[KeyPath, int]]:
    """The document and the line of every key and list item in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LowbitError(f"no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LowbitError(f"cannot read the config file {path}: {error}") from None
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        if node is None:
            return {}, lines
        _note_lines(node, (), lines, path)
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise LowbitError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    finally:
        loader.dispose()


def _note_lines(node: yaml.Node, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise LowbitError(
                    f'{path}:{line}: the key "{key.value}" stands here for the second time '
                    f"(first in line {seen[key.value]}); remove one"
                )
            seen[key.value] = line
            lines[(*at, key.value)] = line
            _note_lines(value, (*at, key.value), lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_lines(item, (*at, index), lines, path)
