"""Recognises a config's layout by its content, and says where a line is missing or too much."""

from __future__ import annotations

from pathlib import Path

from lowbit.errors import LowbitError, nearest
from lowbit.tipc import layout_32, layout_51
from lowbit.tipc.config import ChainConfig
from lowbit.tipc.lines import ConfigFile, Line, read_lines, shorten

_LAYOUTS = (
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
    scores = [sum(_stands(file.line(place), word) for place, word in marks.items()) for marks, _ in _LAYOUTS]
    if scores[0] == scores[1]:
        raise _unrecognised(file)
    marks, read = _LAYOUTS[scores.index(max(scores))]
    for position, word in marks.items():
        _check(file, position, word)
    return read(file)


def _stands(line: Line | None, word: str) -> bool:
    if line is None:
        return False
    return line.title == word[1:] if word.startswith("=") else line.key == word and ":" in line.text


def _check(file: ConfigFile, position: int, word: str) -> None:
    line = file.line(position)
    if line is None and word not in _ALWAYS:  # what is cut off at the end is absent
        return
    if _stands(line, word) or (line is not None and word[0] != "=" and line.says_nothing):
        return
    expected = f"the title {word[1:]}" if word.startswith("=") else f"{word}:..."
    found = f'"{shorten(line.text)}"' if line else "the end of the file"
    raise file.error(position, f"expected {expected}, found {found}{_hint(file, line, position, word)}")


def _hint(file: ConfigFile, line: Line | None, position: int, word: str) -> str:
    """What to do: the word is misspelt here, or stands on another line."""
    elsewhere = [place for place, other in enumerate(file.lines, 1) if _stands(other, word)]
    if elsewhere:
        place = elsewhere[0]
        trouble = "is missing" if place < position else "is too much"
        return f"; it is on line {file.number_of(place)}, so a line above it {trouble}"
    here = "" if line is None else line.title or line.key
    return f'; did you mean "{word.lstrip("=")}"?' if nearest(here, [word.lstrip("=")]) else ""


def _unrecognised(file: ConfigFile) -> LowbitError:
    first = file.lines[0]
    if first.title not in (None, "", "train_params") and nearest(first.title, ["train_params"]) is None:
        return file.error(
            1,
            f"expected the title train_params, found {first.title}: this is the config of another test; lowbit "
            "knows those of train_infer_python.txt's kind",
        )
    found = [place for place, line in enumerate(file.lines, 1) if line.key == "trainer"]
    position = found[0] if found else 13
    return file.error(
        position,
        "expected trainer:... on line 13 (layout of 32 lines) or on line 15 (layout of 51 lines), "
        + (f"found it on line {file.number_of(position)}" if found else "found it nowhere"),
    )
