from __future__ import annotations

import pytest

from lowbit.tipc import Check, make_plan, read_config
from lowbit.tipc.finding import Finding
from lowbit.tipc.judge import Judge
from lowbit.tipc.step import StepKind
from tests.tipc.conftest import CONFIGS


@pytest.fixture
def judge(repo):
    def run_check(step, arguments):
        raise AssertionError("no exported model is opened here")

    return Judge(make_plan(read_config(repo), "lite_train_lite_infer"), run_check)


def _step(judge, kind: StepKind):
    return next(step for step in judge.plan.steps if step.kind is kind)


def _log(judge, step, text: str) -> None:
    path = judge.plan.root / step.log
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def test_a_log_without_a_loss_or_an_accuracy_is_not_judged(judge):
    train, evaluation = _step(judge, StepKind.TRAIN), _step(judge, StepKind.EVAL)
    _log(judge, train, "done")
    _log(judge, evaluation, "done")
    assert [check.passed for check in judge.judge(train, {})] == [False, None]
    assert [check.passed for check in judge.judge(evaluation, {})] == [None]


@pytest.mark.parametrize(("word", "verdict"), [("0.5", True), ("71.3", True), ("nan", False), ("-1", False)])
def test_accuracies(judge, word, verdict):
    step = _step(judge, StepKind.EVAL)
    _log(judge, step, f" * Acc@1 {word} Acc@5 1.0")
    assert [check.passed for check in judge.judge(step, {})] == [verdict]


def test_export_looks_only_at_its_own_folder(judge, monkeypatch):
    step = _step(judge, StepKind.EXPORT)
    folder = judge.plan.root / step.folder
    folder.mkdir(parents=True)
    (folder / "old").write_text("", "utf-8")
    assert list(judge.look(step)) == [folder / "old"]
    assert judge.look(_step(judge, StepKind.EVAL)) == {}
    asked = []

    def find(root, step, before, run):
        asked.append((root, step.name, before))
        return Finding(checks=[Check("x", True, "")])

    monkeypatch.setattr("lowbit.tipc.judge.check_export", find)
    assert judge.judge(step, {}) == [Check("x", True, "")]
    assert asked == [(judge.plan.root, step.name, {})]


def test_the_51_line_layout_need_not_classify(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plan = make_plan(read_config(CONFIGS / "generic.txt"), "whole_infer")
    judge = Judge(plan, None)
    step = next(step for step in plan.steps if step.kind is StepKind.INFER)
    _log(judge, step, "3 boxes")
    assert [check.passed for check in judge.judge(step, {})] == [None]
