"""`lowbit data`: data to try things with, made here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make small data sets without a network.", no_args_is_help=True)


@app.callback()
def _data() -> None:
    """Make small data sets without a network."""


@app.command("lite")
def lite(
    directory: Annotated[Path, typer.Argument(help="Where to write train/, val/ and lite_data.tar.")] = Path(
        "lite_data"
    ),
    tar: Annotated[bool, typer.Option(help="Also pack it as lite_data.tar.")] = True,
) -> None:
    """Write lite data: 16 training and 16 validation images in class folders, the same bytes every time.

    **Example**: `lowbit data lite ./lite_data`, then `python train.py --data-path ./lite_data --epochs 2`
    """
    from lowbit.data import write_lite_data

    write_lite_data(directory, tar=tar)
    print(f"Lite data: {directory}" + (" (and lite_data.tar in it)" if tar else ""))
