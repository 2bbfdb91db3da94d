from __future__ import annotations

import io
import json

from rich.console import Console

from lowbit.tipc import Machine, Status, make_plan, plan_values, print_plan, print_result
from lowbit.tipc.display import Display, TerminalChainDisplay, open_display, verdict
from tests.support.chains import FULL, chain, step


def test_the_table(change, capsys):
    print_plan(make_plan(change("norm"), "whole_infer", machine=Machine(cards=0)))
    out = capsys.readouterr().out
    assert "norm.txt (32-line layout), whole_infer, in " in out
    row = next(line for line in out.splitlines() if line.startswith("3  infer"))
    assert "CUDA_VISIBLE_DEVICES='' python3.7 deploy/inference_python/infer.py --use-gpu=False" in row
    log = "./test_tipc/output/mobilenet_v3_small/whole_infer/python_infer_cpu_batchsize_1.log"
    assert row.rstrip().endswith(f"--benchmark=True > {log} 2>&1")
    assert "skipped: needs card 0; Paddle sees no card here" in out
    assert out.rstrip().endswith("3 commands, 1 of them skipped.")


def test_notes_are_shown(change, capsys):
    config = change("generic", {15: "trainer:norm_train|fpgm_train"})
    print_plan(make_plan(config, "lite_train_lite_infer", machine=Machine(on_cpu=True)))
    out = capsys.readouterr().out
    assert "generic.txt, line 18: fpgm_train has no command and is left out" in out
    assert "(2 processes on this machine's CPU)" in out


def test_values_are_json_and_complete(change):
    plan = make_plan(change("pact"), "lite_train_lite_infer")
    values = json.loads(json.dumps(plan_values(plan)))
    assert values["results_log"] == plan.results_log
    for planned, found in zip(plan.steps, values["steps"], strict=True):
        assert set(found) == set(vars(planned))
        assert tuple(found["arguments"]) == planned.arguments
        assert found["environment"] == planned.environment


def test_every_step_has_its_row(capsys):
    print_result(FULL)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["1", "a", "passed"],
        ["2", "b", "failed"],
        ["3", "c", "skipped"],
    ]
    assert lines[1].endswith("checked: loss; not confirmed: weights")
    assert lines[3].endswith("needs card 0")
    assert lines[-1] == "Failed. resnet18, whole_infer: 1 passed, 1 failed, 1 skipped, 1 not run, in 12 s."


def test_verdicts():
    good = step("a")
    assert verdict(chain(good)).startswith("Passed.")
    assert verdict(chain(good, interrupted=True)).startswith("Interrupted.")
    assert verdict(chain(good, finished=False)).startswith("Not finished:")
    assert verdict(chain(good, unwritten="no room")).startswith("Failed: no room.")
    assert verdict(chain(step("a", Status.SKIPPED))).startswith("Nothing ran.")


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
        "    not confirmed: weights: no .pdparams",
    ]
    assert "    its log: b.log" in lines
    assert not any("Epoch" in line for line in lines)
    monkeypatch.setattr("lowbit.tipc.display._QUIET", -1.0)
    _show(Display())
    assert "    [Epoch 0] loss: 0.5 [/]" in capsys.readouterr().out


def test_a_terminal(monkeypatch):
    display = TerminalChainDisplay()
    shown = io.StringIO()
    display._console = Console(file=shown, force_terminal=True, width=60, highlight=False)
    _show(display)
    text = shown.getvalue()
    assert "\x1b[33m status of a!  \x1b[0m" in text  # in yellow, as in the original
    assert "\x1b[31m status of b!  \x1b[0m" in text


def test_where_nobody_watches(capsys):
    assert type(open_display()) is Display
