"""Reads a chain test's config as numbered lines, and says what a value means."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from lowbit.errors import LowbitError, did_you_mean, nearest

_TITLE = re.compile(r"=+\s*(\w*)\s*=+")
_LONGEST = 1_000_000  # bytes; the largest known config has three thousand


@dataclass(frozen=True)
class Line:
    """A line that is not blank: its number in the file, and its text, stripped."""

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
        """Everything after the first colon: a value may have colons."""
        return self.text.partition(":")[2].strip()

    @property
    def is_unused(self) -> bool:
        """A separator, or a line that this config does not use."""
        return self.is_separator or (is_absent(self.key) and is_absent(self.value))


@dataclass(frozen=True)
class Field:
    """A `key:value` with its file and line number, for error messages."""

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
    raw: tuple[str, ...] = ()  # as the file has them, with blanks at their ends; empty ones left out

    def line(self, position: int) -> Line | None:
        """The line at a position from 1; None after the end, where missing lines mean absent ones."""
        return self.lines[position - 1] if position <= len(self.lines) else None

    def number_of(self, position: int) -> int:
        """The line number of a position, also after the end."""
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
    """Shorten a text for a message."""
    return text if len(text) <= 60 else text[:57] + "..."


def read_lines(path: Path) -> ConfigFile:
    """Read a file's lines. Any line ends, a byte order mark and trailing blanks are allowed."""
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
    return ConfigFile(str(path), tuple(lines), tuple(line for line in text.split("\n") if line))


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


TRAIN_MODES = ("lite_train_lite_infer", "lite_train_whole_infer", "whole_train_whole_infer")
MODES = (*TRAIN_MODES, "whole_infer")

_GPU_WORDS = {"True": True, "gpu": True, "False": False, "cpu": False}


@dataclass(frozen=True)
class DeviceChoice:
    """One alternative of `gpu_list`: no cards is the CPU; addresses mean several machines.

    >>> parse_device("0,1")
    DeviceChoice(cards=(0, 1), addresses=())
    """

    cards: tuple[int, ...]
    addresses: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        return not self.cards

    @property
    def is_launched(self) -> bool:
        """Whether training needs the launcher: several cards or several machines."""
        return len(self.cards) > 1 or bool(self.addresses)

    @property
    def nodes(self) -> int:
        return len(self.addresses) or 1

    @property
    def text(self) -> str:
        """The cards as in the config, and in names of folders."""
        return ",".join(map(str, self.cards)) or "-1"


def alternatives(value: str) -> tuple[str, ...]:
    """The parts between `|`; an absent value has none.

    >>> alternatives("True|False")
    ('True', 'False')
    """
    parts = (part.strip() for part in value.split("|"))
    return () if is_absent(value) else tuple(part for part in parts if part)


def parse_device(text: str) -> DeviceChoice | None:
    """`-1`, `0`, `0,1` or `address,address;0,1`; None when it is none of them."""
    if text.strip() == "-1":
        return DeviceChoice(())
    before, semicolon, behind = text.rpartition(";")
    cards = [card.strip() for card in behind.split(",")]
    addresses = [address.strip() for address in before.split(",")] if semicolon else []
    if not all(re.fullmatch(r"[0-9]{1,4}", card) for card in cards):
        return None
    if not all(re.fullmatch(r"[A-Za-z0-9_.:-]+", address) for address in addresses):
        return None
    return DeviceChoice(tuple(map(int, cards)), tuple(addresses))


def device_choices(field: Field) -> tuple[DeviceChoice, ...]:
    """All alternatives of `gpu_list`."""
    expected = "-1 (CPU), 0 (a card), 0,1 (cards) or address,address;0,1 (machines)"
    field.require(expected)
    found = []
    for text in field.value.split("|"):
        choice = parse_device(text)
        if choice is None:
            raise field.error(f'expected {expected} in each alternative, found "{shorten(text)}"')
        if len(set(choice.cards)) < len(choice.cards):
            raise field.error(f'expected each card once, found "{shorten(text)}"')
        found.append(choice)
    return tuple(found)


def is_gpu_word(field: Field, word: str) -> bool:
    """Whether a word such as `True` or `cpu` asks for a GPU.

    >>> is_gpu_word(Field("c.txt", 28, "--use-gpu", "True|False"), "False")
    False
    """
    if word not in _GPU_WORDS:
        hint = did_you_mean(word, _GPU_WORDS)
        raise field.error(f'expected True or False, or gpu or cpu, found "{shorten(word)}"; {hint}')
    return _GPU_WORDS[word]


def cpu_word(word: str) -> str:
    """The word for the CPU of the same kind: `False` for `True`, `cpu` for `gpu`."""
    return "False" if word in ("True", "False") else "cpu"


def is_true(field: Field, word: str) -> bool:
    """Whether a flag such as `infer_quant` is True. An absent value and a misspelt False are False.

    Hundreds of PaddleClas's configs have `Fasle`, which its runner takes as False; see `is_misspelt`.
    """
    if word not in ("True", "False") and not is_absent(word) and not is_misspelt(word):
        hint = did_you_mean(word, ("True", "False"))
        raise field.error(f'expected True or False, found "{shorten(word)}"; {hint}')
    return word == "True"


def is_misspelt(word: str) -> bool:
    """Whether a word is a misspelt `False`. A misspelt `True` is an error instead.

    >>> is_misspelt("Fasle"), is_misspelt("Ture"), is_misspelt("False")
    (True, False, False)
    """
    return word != "False" and nearest(word, ("True", "False")) == "False"


def file_behind(url: str) -> str | None:
    """The file that downloading a URL writes to the current folder; None if it is no URL.

    >>> file_behind("https://host/dygraph/ResNet50_pretrained.pdparams?x=1")
    './ResNet50_pretrained.pdparams'
    """
    if "://" not in url:
        return None
    name = posixpath.basename(urlsplit(url).path)
    return f"./{name}" if name else None


def per_mode(field: Field) -> dict[str, str]:
    """The entries of `mode=value|mode=value`; a value without a mode is that of every mode.

    >>> per_mode(Field("c.txt", 6, "--epochs", "lite_train_lite_infer=5|whole_train_whole_infer=90"))
    {'lite_train_lite_infer': '5', 'whole_train_whole_infer': '90'}
    """
    found: dict[str, str] = {}
    for entry in alternatives(field.value):
        word, equals, value = entry.partition("=")
        for mode in (word.strip(),) if equals else MODES:
            if mode in found:
                raise field.error(f'expected one entry for {mode}, found two in "{shorten(field.value)}"')
            found[mode] = (value if equals else word).strip()
    return found


Words = tuple[str, ...]


# A grid of inferences has the same few options over and over.
@lru_cache(maxsize=1024)
def split_words(field: Field, text: str) -> Words:
    """Split a command as a shell does. Syntax that needs a shell is an error.

    >>> split_words(Field("c.txt", 14, "norm_train", ""), "train.py -o 'a b'")
    ('train.py', '-o', 'a b')
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = tuple(lexer)
    except ValueError:
        raise field.error(f'expected a closed quotation mark in "{shorten(text)}"') from None
    for word in words:
        if set(word) <= set("();<>|&") or any(letter in word for letter in "$`"):
            raise field.error(
                f'expected a program and its arguments, found "{shorten(word)}", which needs a shell: lowbit '
                "runs none; put it into a script and name that here"
            )
    return words


def option(field: Field | None, value: str | None = None) -> Words:
    """`key=value` with a value from the config; nothing when either is absent, or the layout has no such key.

    A key may have several words, as in `-o Global.epochs:5`.
    """
    if field is None:
        return ()
    value = field.value if value is None else value
    if is_absent(field.key) or is_absent(value):
        return ()
    return split_words(field, f"{field.key}={value}")


def option_with(field: Field, value: str) -> Words:
    """`key=value` with a value that is not from the config, such as a folder: it stays one word."""
    keys = () if is_absent(field.key) else split_words(field, field.key)
    return (*keys[:-1], f"{keys[-1]}={value}") if keys else ()
