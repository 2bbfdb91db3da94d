"""What a value of a chain test's config means: alternatives, values per mode, devices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lowbit.errors import did_you_mean
from lowbit.tipc.lines import Field, is_absent, shorten

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
        """Training needs the launcher: there are several cards or several machines."""
        return len(self.cards) > 1 or bool(self.addresses)

    @property
    def nodes(self) -> int:
        return len(self.addresses) or 1

    @property
    def text(self) -> str:
        """The cards as in the config, and in names of folders."""
        return ",".join(map(str, self.cards)) or "-1"


def alternatives(value: str) -> tuple[str, ...]:
    """What `|` separates; an absent value has no alternatives.

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
    """The CPU, in the same dialect as a word for the GPU: `False` for `True`, `cpu` for `gpu`."""
    return "False" if word in ("True", "False") else "cpu"


def is_true(field: Field, word: str) -> bool:
    """Whether a flag such as `infer_quant` says True; nothing says False."""
    if word not in ("True", "False") and not is_absent(word):
        hint = did_you_mean(word, ("True", "False"))
        raise field.error(f'expected True or False, found "{shorten(word)}"; {hint}')
    return word == "True"


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
