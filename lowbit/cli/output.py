"""How commands print: results as tables that fit the terminal, progress only where it is wanted."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowbit.formatting import Section, as_text

if TYPE_CHECKING:
    from lowbit.api.result import Result
    from lowbit.training.display import PlainDisplay


def terminal_width() -> int | None:
    """The columns of the terminal; None for a pipe or a file, where rows are best left whole for grep."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show(result: Result | Sequence[Section], *, wide: bool = False) -> None:
    """Print a result's tables; `wide` shows all columns, each row on one line."""
    width = None if wide else terminal_width()
    is_plain = isinstance(result, Sequence)
    print(as_text(result, width, wide=wide) if is_plain else result.to_text(width, wide=wide))


def open_progress(*, quiet: bool) -> PlainDisplay:
    """The display of progress that fits where the output goes, or a silent one."""
    from lowbit.training.display import PlainDisplay, open_display

    return PlainDisplay(silent=True) if quiet else open_display()
