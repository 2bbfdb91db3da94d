from __future__ import annotations

import io

from rich.console import Console

from lowbit.tipc.display import Display, TerminalDisplay, open_display
from tests.tipc.results import FULL


def _show(display: Display) -> None:
    with display:
        for number, result in enumerate(FULL.steps, 1):
            display.begin(number, 4, result.kind, result.name)
            display.line("[Epoch 0] loss: 0.5 [/]")
            display.end(result, f" status of {result.name}!  ")


def test_plain_lines(capsys, monkeypatch):
    _show(Display())
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "[1/4] train a",
        " status of a!  ",
        "    on the CPU",
        "    not checked: weights: no .pdparams",
    ]
    assert "    its log: b.log" in lines
    assert not any("Epoch" in line for line in lines)
    monkeypatch.setattr("lowbit.tipc.display._QUIET", -1.0)
    _show(Display())
    assert "    [Epoch 0] loss: 0.5 [/]" in capsys.readouterr().out


def test_a_terminal(monkeypatch):
    display = TerminalDisplay()
    shown = io.StringIO()
    display._console = Console(file=shown, force_terminal=True, width=60, highlight=False)
    _show(display)
    text = shown.getvalue()
    assert "\x1b[33m status of a!  \x1b[0m" in text  # in yellow, as in the original
    assert "\x1b[31m status of b!  \x1b[0m" in text


def test_where_nobody_watches(capsys):
    assert type(open_display()) is Display
