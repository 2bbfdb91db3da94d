"""What a person sees while a chain runs: in a terminal the step and its last line, else plain lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from lowbit.tipc.result import Status, StepResult

_QUIET = 30.0  # seconds between two signs of life in a log


class Display:
    """Lines, for logs and pipes."""

    def __init__(self) -> None:
        self._last = 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def begin(self, number: int, total: int, kind: str, name: str) -> None:
        """A step starts."""
        self._last = time.monotonic()
        print(f"[{number}/{total}] {kind} {name}", flush=True)

    def line(self, text: str) -> None:
        """What the step prints; now and then one of its lines is shown."""
        if time.monotonic() - self._last > _QUIET:
            self._last = time.monotonic()
            print(f"    {text}", flush=True)

    def warn(self, text: str) -> None:
        """Something that is not about a step."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def end(self, result: StepResult, status_line: str) -> None:
        """The step is over: the line that tools look for, and why it did not pass."""
        print(status_line, flush=True)
        for text in _remarks(result):
            print(f"    {text}", flush=True)


class TerminalDisplay(Display):
    """A spinner with the step and its last line; status lines in yellow, as in the original."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False)
        self._spinner: Spinner | None = None
        self._title = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def begin(self, number: int, total: int, kind: str, name: str) -> None:
        self._stop()
        self._title = f"[{number}/{total}] {kind} {name}"
        self._spinner = self._console.status(Text(self._title))
        self._spinner.start()

    def line(self, text: str) -> None:
        if self._spinner is not None:
            shown = Text(f"{self._title}\n  {text}", no_wrap=True, overflow="ellipsis")
            self._spinner.update(shown)

    def end(self, result: StepResult, status_line: str) -> None:
        self._stop()
        style = "red" if result.status is Status.FAILED else "yellow"
        self._console.print(Text(status_line, style=style), soft_wrap=True)
        for text in _remarks(result):
            self._console.print(Text(f"    {text}"), soft_wrap=True)

    def _stop(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def _remarks(result: StepResult) -> list[str]:
    failed = [f"failed: {result.reason}", f"its log: {result.log}"] if result.status is Status.FAILED else []
    return [*failed, *result.notes, *(f"not checked: {text}" for text in result.unchecked)]


def open_display() -> Display:
    """The display that fits where the output goes."""
    return TerminalDisplay() if sys.stdout.isatty() else Display()
