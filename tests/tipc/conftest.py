"""Configs of both layouts, and a way to change lines of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lowbit.tipc import ChainConfig, read_config

CONFIGS = Path(__file__).parent / "configs"
NAMES = ("norm", "pact", "amp", "fleet", "generic")

Change = Callable[..., ChainConfig]


def config_lines(name: str) -> list[str]:
    return (CONFIGS / f"{name}.txt").read_text("utf-8").splitlines()


def changed_text(name: str, lines: dict[int, str | None]) -> str:
    """A config with some lines replaced by their number; None takes a line away."""
    found = [lines.get(number, line) for number, line in enumerate(config_lines(name), 1)]
    return "\n".join(line for line in found if line is not None)


@pytest.fixture
def change(tmp_path) -> Change:
    """Reads a config with changes: `change("norm", {4: "gpu_list:-1"})`."""

    def call(name: str, lines: dict[int, str | None] | None = None) -> ChainConfig:
        file = tmp_path / f"{name}.txt"
        file.write_text(changed_text(name, lines or {}), "utf-8")
        return read_config(file)

    return call
