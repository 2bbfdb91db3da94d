"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="A config with PaddleClas's sections.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override", "-o", metavar="SECTION.KEY=VALUE", help="Changes one setting of the config; repeatable."
    ),
]
DeviceName = Annotated[
    str | None, typer.Option(help="`cpu`, `gpu` or `gpu:0`; left out: the best device there is.")
]


def given(**options: tuple[str, Any]) -> dict[str, tuple[str, Any]]:
    """The options that were given, as `load_config` wants them: `given(epochs=("Global.epochs", 2))`.

    >>> given(epochs=("Global.epochs", 2), device=("Global.device", None))
    {'--epochs': ('Global.epochs', 2)}
    """
    return {
        f"--{name.replace('_', '-')}": setting for name, setting in options.items() if setting[1] is not None
    }
