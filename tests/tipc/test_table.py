from __future__ import annotations

from lowbit.tipc import Status, print_result
from lowbit.tipc.table import verdict
from tests.tipc.results import FULL, chain, step


def test_every_step_has_its_row(capsys):
    print_result(FULL)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["1", "a", "passed"],
        ["2", "b", "failed"],
        ["3", "c", "skipped"],
    ]
    assert lines[1].endswith("checked: loss; not checked: weights")
    assert lines[3].endswith("needs card 0")
    assert lines[-1] == "Failed. resnet18, whole_infer: 1 passed, 1 failed, 1 skipped, 1 not run, in 12 s."


def test_verdicts():
    good = step("a")
    assert verdict(chain(good)).startswith("Passed.")
    assert verdict(chain(good, interrupted=True)).startswith("Interrupted.")
    assert verdict(chain(good, finished=False)).startswith("Not finished:")
    assert verdict(chain(good, unwritten="no room")).startswith("Failed: no room.")
    assert verdict(chain(step("a", Status.SKIPPED))).startswith("Nothing ran.")
