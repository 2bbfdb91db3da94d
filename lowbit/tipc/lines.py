"""Reads a chain test's config as numbered lines: `key:value`, titles and separators."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lowbit.errors import LowbitError, nearest

_TITLE = re.compile(r"=+\s*(\w*)\s*=+")
_LONGEST = 1_000_000  # bytes; the largest known config has three thousand


@dataclass(frozen=True)
class Line:
    """One line that is not blank: its number in the file, and its text without blanks at its ends."""

    number: int
    text: str

    @property
    def title(self) -> str | None:
        """The word of a `====word====` line."""
        found = _TITLE.fullmatch(self.text)
        return found[1] if found else None

    @property
    def is_separator(self) -> bool:
        return self.text.startswith("#")

    @property
    def key(self) -> str:
        return self.text.partition(":")[0].strip()

    @property
    def value(self) -> str:
        """Everything behind the first colon: a value may have colons of its own."""
        return self.text.partition(":")[2].strip()

    @property
    def says_nothing(self) -> bool:
        """A separator, or a place that the layout has and this config does not use."""
        return self.is_separator or (is_absent(self.key) and is_absent(self.value))


@dataclass(frozen=True)
class Field:
    """A `key:value` with the place it was read from, so that every message can name it."""

    source: str
    number: int
    key: str
    value: str

    @property
    def is_absent(self) -> bool:
        return is_absent(self.value)

    def error(self, message: str) -> LowbitError:
        return LowbitError(f"{self.source}, line {self.number}: {message}")

    def require(self, what: str) -> str:
        """The value, which must be there; `what` says what was expected."""
        if self.is_absent:
            raise self.error(f"expected {what}, found nothing")
        return self.value


@dataclass(frozen=True)
class ConfigFile:
    """The lines of a config. A position counts lines that are not blank, as the original does.

    >>> ConfigFile("c.txt", (Line(1, "model_name:resnet18"),)).field(1).value
    'resnet18'
    """

    source: str
    lines: tuple[Line, ...]

    def line(self, position: int) -> Line | None:
        """The line at a position from 1; None behind the end, where missing lines mean absent ones."""
        return self.lines[position - 1] if position <= len(self.lines) else None

    def number_of(self, position: int) -> int:
        """The number that an editor shows for a position, also behind the end."""
        line = self.line(position)
        if line is not None:
            return line.number
        return position + (self.lines[-1].number - len(self.lines) if self.lines else 0)

    def field(self, position: int) -> Field:
        line = self.line(position)
        if line is None or line.is_separator:
            return Field(self.source, self.number_of(position), "", "")
        if line.title is not None or ":" not in line.text:
            raise self.error(position, f'expected key:value, found "{shorten(line.text)}"')
        return Field(self.source, line.number, line.key, line.value)

    def error(self, position: int, message: str) -> LowbitError:
        return LowbitError(f"{self.source}, line {self.number_of(position)}: {message}")


def is_absent(value: str) -> bool:
    """`null`, or nothing."""
    return value in ("", "null")


def present(value: str) -> str | None:
    """The value, or None where it is absent."""
    return None if is_absent(value) else value


def shorten(text: str) -> str:
    """A text for a message: a line of a file may be of any length."""
    return text if len(text) <= 60 else text[:57] + "..."


def read_lines(path: Path) -> ConfigFile:
    """The lines of a file, whichever line ends, byte order mark or trailing blanks it has."""
    content = _read(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise LowbitError(
            f"{path}, line {number}: expected text in UTF-8, found byte {content[error.start]:#04x}; "
            "save the file as UTF-8"
        ) from None
    lines = []
    for number, raw in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        line = raw.strip()
        strange = next((letter for letter in line if not letter.isprintable() and letter != "\t"), None)
        if strange is not None:
            raise LowbitError(
                f"{path}, line {number}: expected text, found the control character {ord(strange):#04x}"
            )
        if line:
            lines.append(Line(number, line))
    if not lines:
        raise LowbitError(f"{path}, line 1: expected the title train_params, found an empty file")
    return ConfigFile(str(path), tuple(lines))


def _read(path: Path) -> bytes:
    if not path.is_file():
        beside = [other.name for other in path.parent.glob("*.txt")] if path.parent.is_dir() else []
        guess = nearest(path.name, beside)
        hint = f'; did you mean "{path.parent / guess}"?' if guess else "; give a chain test's .txt file"
        raise LowbitError(f"{path} is not a file{hint}")
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        raise LowbitError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _LONGEST:
        raise LowbitError(f"{path} is larger than {_LONGEST} bytes: that is no chain test's config")
    return content
