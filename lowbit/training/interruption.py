"""Ctrl-C and SIGTERM as a request to finish the step, save, and stop; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interruption:
    """While it is open, the first SIGINT or SIGTERM only sets `asked`.

    >>> with Interruption() as interruption:
    ...     interruption.asked
    False
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
