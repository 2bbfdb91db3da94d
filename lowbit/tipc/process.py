"""Runs one program without a shell, and ends it together with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from lowbit.tipc.steps import Environment

_MARK = "LOWBIT_TIPC_STEP"  # in the environment: also found in a process that left its session and parent
_GRACE = 5.0  # seconds between asking and forcing
_LOOK_EVERY = 0.1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a program ended. `exit_code` is minus the number of the signal that ended it; None: never started.

    `ended` says why it was ended from here. `left_behind` counts processes that outlived it, and were ended.
    """

    seconds: float
    exit_code: int | None = None
    ended: str | None = None
    left_behind: int = 0


def run_program(
    arguments: Sequence[str],
    *,
    folder: Path,
    log: Path,
    environment: Environment | None = None,
    timeout: float | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run a program until it ends, the time is over, or an interruption. It leaves no process alive.

    What the program prints goes to `log`; `on_line` sees each line as it comes.

    >>> run_program(["true"], folder=Path("."), log=Path("x.log")).exit_code  # doctest: +SKIP
    0
    """
    start = time.monotonic()
    token = uuid.uuid4().hex
    variables = {**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1", _MARK: token}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                list(arguments),
                cwd=folder,
                env={name: value for name, value in variables.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us, and we decide
            )
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return Outcome(seconds=0.0, ended=f"could not be started: {error.strerror}{where}")
    tail, ended = _Tail(log, on_line), None
    try:
        while process.poll() is None:
            tail.read()
            if is_interrupted():
                ended = "interrupted"
            elif timeout is not None and time.monotonic() - start > timeout:
                ended = f"not done after {timeout:.4g} s"
            if ended:
                break
            time.sleep(_LOOK_EVERY)
        left_behind = 0 if ended else len(_marked(token))
        _end_all(token, process)
        tail.read()
    finally:  # a second Ctrl-C: no more grace
        _kill_all(token, process)
    return Outcome(
        seconds=time.monotonic() - start,
        exit_code=process.returncode,
        ended=ended,
        left_behind=left_behind,
    )


class _Tail:
    """Reads the lines that were added to a log."""

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._path, self._on_line = path, on_line
        self._position, self._rest = 0, b""

    def read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        self._position += len(new)
        # A progress bar ends its lines with \r.
        *lines, self._rest = (self._rest + new).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if line.strip():
                self._on_line(line.decode("utf-8", "replace").rstrip())


def _marked(token: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == token:
                found.append(process)
        except (psutil.Error, OSError):  # ended meanwhile, a zombie, or another user's
            continue
    return found


def _end_all(token: str, process: subprocess.Popen[bytes]) -> None:
    """Ask all processes to end, and wait for some seconds."""
    deadline = time.monotonic() + _GRACE
    alive = _marked(token)
    _send(alive, signal.SIGTERM)
    while alive and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
        process.poll()  # else it stays as a zombie
        alive = _marked(token)


def _kill_all(token: str, process: subprocess.Popen[bytes]) -> None:
    """Kill all processes, repeatedly, because one may just have started another."""
    deadline = time.monotonic() + _GRACE
    while (alive := _marked(token)) and time.monotonic() < deadline:
        _send(alive, signal.SIGKILL)
        time.sleep(0.01)
        process.poll()
    if process.poll() is None:  # it had thrown its environment away
        process.kill()
    process.wait()


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue
