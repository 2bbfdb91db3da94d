"""Recognises a config's layout by its content, and says where a line is missing or too much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lowbit.errors import LowbitError, nearest
from lowbit.tipc import layout_32, layout_51
from lowbit.tipc.config import ChainConfig
from lowbit.tipc.lines import ConfigFile, Line, read_lines, shorten

_Layout = tuple[dict[int, str], Callable[[ConfigFile], ChainConfig]]
_LAYOUTS: tuple[_Layout, _Layout] = (
    (layout_32.LANDMARKS, layout_32.read_32),
    (layout_51.LANDMARKS, layout_51.read_51),
)
_ALWAYS = ("model_name", "python", "gpu_list", "trainer")


def read_config(path: Path) -> ChainConfig:
    """A chain test's config in typed parts, whichever of the two layouts it has.

    >>> read_config(Path("test_tipc/configs/resnet18/train_infer_python.txt")).layout  # doctest: +SKIP
    32
    """
    file = read_lines(path)
    marks, read = _recognise(file)
    for position, word in marks.items():
        _check(file, position, word)
    return read(file)


def _recognise(file: ConfigFile) -> _Layout:
    """The layout that more of the landmarks fit, or whose distance between two of them this file has."""
    scores = [sum(_stands(file.line(place), word) for place, word in marks.items()) for marks, _ in _LAYOUTS]
    if scores[0] != scores[1]:
        return _LAYOUTS[scores.index(max(scores))]
    # A line too few near the top moves all landmarks, but not one against the other.
    trainer, title = _places(file, "trainer"), _places(file, "=eval_params")
    if trainer and title:
        return _LAYOUTS[0 if title[0] - trainer[0] <= 5 else 1]
    raise _unrecognised(file)


def _places(file: ConfigFile, word: str) -> list[int]:
    return [place for place, line in enumerate(file.lines, 1) if _stands(line, word)]


def _stands(line: Line | None, word: str) -> bool:
    if line is None:
        return False
    return line.title == word[1:] if word.startswith("=") else line.key == word and ":" in line.text


def _check(file: ConfigFile, position: int, word: str) -> None:
    line = file.line(position)
    if line is None and word not in _ALWAYS:  # what is cut off at the end is absent
        return
    if _stands(line, word):
        return
    if line is not None and line.says_nothing and word[0] != "=" and not _places(file, word):
        return
    expected = f"the title {word[1:]}" if word.startswith("=") else f"{word}:..."
    found = f'"{shorten(line.text)}"' if line else "the end of the file"
    raise file.error(position, f"expected {expected}, found {found}{_hint(file, line, position, word)}")


def _hint(file: ConfigFile, line: Line | None, position: int, word: str) -> str:
    """What to do: the word is misspelt here, or stands on another line."""
    elsewhere = _places(file, word)
    if elsewhere:
        place = elsewhere[0]
        trouble = "is missing" if place < position else "is too much"
        return f"; it is on line {file.number_of(place)}, so a line above it {trouble}"
    here = "" if line is None else line.title or line.key
    return f'; did you mean "{word.lstrip("=")}"?' if nearest(here, [word.lstrip("=")]) else ""


def _unrecognised(file: ConfigFile) -> LowbitError:
    first, found = file.lines[0], _places(file, "trainer")
    if first.title not in (None, "train_params") and not found:
        return file.error(
            1,
            f"expected the title train_params, found {shorten(first.title)}: this is the config of another "
            "test; lowbit knows those of train_infer_python.txt's kind",
        )
    position = found[0] if found else 13
    return file.error(
        position,
        "expected trainer:... on line 13 (layout of 32 lines) or on line 15 (layout of 51 lines), "
        + (f"found it on line {file.number_of(position)}" if found else "found it nowhere"),
    )
