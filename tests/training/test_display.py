from __future__ import annotations

import io
import re

from rich.console import Console

from lowbit.training.display import PlainDisplay, StepReport, TerminalDisplay, accuracy_line, open_display

REPORT = StepReport(
    epoch=0,
    iteration=10,
    metrics={"loss": 2.24239, "top1": 0.48594, "top5": 0.70625},
    learning_rate=0.001,
    reader_cost=0.00026,
    batch_cost=0.41364,
    samples=64.0,
)


def test_the_log_line_is_the_one_that_tools_parse():
    assert REPORT.log_line() == (
        "[Epoch 0, iter: 10] top1: 0.48594, top5: 0.70625, lr: 0.00100, loss: 2.24239, "
        "avg_reader_cost: 0.00026 sec, avg_batch_cost: 0.41364 sec, avg_samples: 64.0, "
        "avg_ips: 154.72391 images/sec."
    )


def test_the_accuracy_line_is_the_one_that_tools_parse():
    assert accuracy_line({"loss": 1.0, "top1": 0.5644, "top5": 0.79}) == " * Acc@1 0.564 Acc@5 0.790"


def test_without_a_terminal_there_are_plain_lines(capsys):
    with open_display() as display:
        display.begin("epoch 1/1", 20)
        display.report(REPORT)
        display.message("[not markup] 1")
    assert capsys.readouterr().out == f"{REPORT.log_line()}\n[not markup] 1\n"


def test_only_the_first_rank_speaks(capsys):
    with open_display(first_rank=False) as display:
        display.report(REPORT)
        display.message("hello")
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar_with_speed_and_time_left(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        "lowbit.training.display.Console",
        lambda: Console(file=screen, force_terminal=True, width=120, legacy_windows=False),
    )
    with TerminalDisplay() as display:
        display.begin("epoch 1/2", 20)
        for _ in range(10):
            display.advance()
        display.report(REPORT)
        display.message("[Epoch] stays as it is")
        display._progress.refresh()  # the bar redraws itself ten times a second, this test is faster
        display.finish({"loss": 2.2, "top1": 0.4, "images_per_second": 150.0})
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "epoch 1/2" in shown and "10/20" in shown
    assert "loss 2.242 top1 0.486 155 images/s" in shown
    assert "epoch 1/2: loss 2.200 top1 0.400 150 images/s" in shown
    assert "left" in shown and "[Epoch] stays as it is" in shown
    assert isinstance(display, PlainDisplay)


def test_a_pipe_gets_a_line_of_progress_every_ten_seconds(capsys):
    clock = iter(float(second) for second in range(0, 1000, 4))
    with PlainDisplay(now=lambda: next(clock)) as display:
        display.begin("verify", 8)
        for _ in range(8):
            display.advance()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == ["verify: 3 of 8, 20.0 s left", "verify: 6 of 8, 8.0 s left"]


def test_quiet_shows_results_only(capsys):
    with open_display(quiet=True) as display:
        display.message("a note")
        display.result("a result")
    with open_display(silent=True) as display:
        display.result("nothing")
    assert capsys.readouterr().out == "a result\n"
