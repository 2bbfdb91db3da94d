"""Options of the ecosystem's scripts that are written `--use-gpu=True`, not as bare flags."""

from __future__ import annotations

import typer

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def yes_no_option(*names: str, help: str) -> typer.models.OptionInfo:
    """An option whose text the callback makes a bool of; left out without a default, it stays None."""
    return typer.Option(*names, callback=_yes_no, metavar="True|False", help=help)


def _yes_no(text: str | None) -> bool | None:
    if text is None:
        return None
    if text.lower() not in _WORDS:
        raise typer.BadParameter(f"expected True or False, got {text!r}")
    return _WORDS[text.lower()]
