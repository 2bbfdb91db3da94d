from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from lowbit.tipc import Check, make_plan, read_config
from lowbit.tipc.judge import (
    Expected,
    Judge,
    ModelReport,
    Request,
    check_export,
    check_learning,
    check_printed_classes,
    read_report,
)
from lowbit.tipc.process import Outcome
from lowbit.tipc.step_outputs import take_snapshot
from lowbit.tipc.steps import Step, StepKind
from tests.support.chains import CONFIGS


def test_what_was_written_comes_back(tmp_path):
    found = ModelReport(
        checks=[Check("a", None, "b")], expected=[Expected("i.jpg", [0.5, 0.5])], image_count=3
    )
    (tmp_path / "f.json").write_text(json.dumps(asdict(found)), "utf-8")
    assert read_report(tmp_path / "f.json") == found


def test_half_a_file_or_none(tmp_path):
    assert read_report(tmp_path / "f.json") is None
    (tmp_path / "f.json").write_text('{"checks": [', "utf-8")
    assert read_report(tmp_path / "f.json") is None


@pytest.fixture
def step(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/latest.pdparams").write_text("weights", "utf-8")
    return Step(
        name="x",
        kind=StepKind.EXPORT,
        arguments=("python",),
        log="x.log",
        folder="run",
        weights="run/latest.pdparams",
        image="demo.jpg",
        leaves="run",
        quantized=True,
    )


class _Checker:
    """Answers as the other process would, and keeps what it was asked."""

    def __init__(self, code: int = 0, answer: bool = True, ended: str | None = None) -> None:
        self.asked: Request | None = None
        self._outcome, self._answer = Outcome(seconds=1.0, exit_code=code, ended=ended), answer

    def __call__(self, step, arguments) -> Outcome:
        question, answer = map(Path, arguments[-2:])
        self.asked = Request(**json.loads(question.read_text("utf-8")))
        if self._answer:
            found = {
                "checks": [{"name": "n", "passed": True, "detail": "d"}],
                "expected": [],
                "image_count": 0,
            }
            answer.write_text(json.dumps(found), "utf-8")
        return self._outcome


def _write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, "utf-8")


def test_the_files_of_this_step_are_looked_at(tmp_path, step):
    _write(tmp_path, "qat_inference.json", "qat_inference.pdiparams")  # training left them
    before = take_snapshot(tmp_path / "run")
    _write(tmp_path, "inference.json", "inference.pdiparams", "inference.yml", "model.onnx")
    checker = _Checker()
    finding = check_export(tmp_path, step, before, checker)
    assert [check.name for check in finding.checks] == ["n"]
    run = tmp_path / "run"
    assert checker.asked == Request(
        program=str(run / "inference.json"),
        onnx=str(run / "model.onnx"),
        weights=str(run / "latest.pdparams"),
        images="demo.jpg",
        quantized=True,
    )


def test_a_step_that_quantizes_leaves_its_own_checkpoint(tmp_path, step):
    checker = _Checker()
    _write(tmp_path, "m.pdmodel", "m.pdiparams", "ptq/checkpoints/latest.lowbit")
    check_export(tmp_path, step, {}, checker)
    assert checker.asked.weights == str(tmp_path / "run/ptq/checkpoints/latest.lowbit")
    assert checker.asked.program == str(tmp_path / "run/m.pdmodel")


@pytest.mark.parametrize("names", [(), ("inference.json",), ("config.json", "inference.pdiparams")])
def test_no_model(tmp_path, step, names):
    _write(tmp_path, *names)
    [check] = check_export(tmp_path, step, {}, _Checker()).checks
    assert (check.name, check.passed) == ("exported model", False)


def test_only_a_model_of_an_earlier_run(tmp_path, step):
    _write(tmp_path, "inference.json", "inference.pdiparams")
    [check] = check_export(tmp_path, step, take_snapshot(tmp_path / "run"), _Checker()).checks
    assert check.passed is False and "(one of an earlier run is there)" in check.detail


@pytest.mark.parametrize(
    ("checker", "words"),
    [
        (_Checker(code=-11, answer=False), "ended with exit code -11"),
        (_Checker(code=1), "ended with exit code 1"),
        (_Checker(code=-15, ended="not done after 600 s"), "not done after 600 s"),
    ],
)
def test_a_process_that_does_not_come_back(tmp_path, step, checker, words):
    _write(tmp_path, "inference.json", "inference.pdiparams")
    [check] = check_export(tmp_path, step, {}, checker).checks
    assert check.passed is False and words in check.detail


@pytest.fixture
def check_log(tmp_path):
    def call(text: str, *expected: list[float], count: int | None = None, must_classify: bool = True):
        log = tmp_path / "x.log"
        log.write_text(text, "utf-8")
        images = [Expected(f"images/{name}.jpg", row) for name, row in zip("abc", expected, strict=False)]
        finding = (
            ModelReport(checks=[], expected=images, image_count=count or len(images)) if expected else None
        )
        return check_printed_classes(log, finding, must_classify=must_classify)

    return call


def test_the_same_as_trained(check_log):
    text = "image_name: ./images/a.jpg, class_id: 1, prob: 0.700\nimage_name: b.jpg, class_id: 0, prob: 0.6"
    checks = check_log(text, [0.3, 0.7], [0.6, 0.4])
    assert [check.passed for check in checks] == [True, True]
    assert checks[1].detail == "the same for all 2 compared images"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class_id: 0, prob: 0.700", "trained, class 1 with 0.700; printed, class 0 with 0.700"),
        ("class_id: 1, prob: 0.650", "printed, class 1 with 0.650"),
        ("class_id: 7, prob: 0.700", "printed, class 7 with 0.700"),
        ("image_name: z.jpg, class_id: 1, prob: 0.7", "expected images/a.jpg, it printed z.jpg"),
        ("class_id: 1, prob: 0.7\nclass_id: 1, prob: 0.7", "1 images, but 2 lines"),
    ],
)
def test_another_answer_than_trained(check_log, text, reason):
    check = check_log(text, [0.3, 0.7])[-1]
    assert check.passed is False
    assert reason in check.detail


def test_of_equals_either_may_be_named(check_log):
    assert check_log("class_id: 0, prob: 0.498", [0.498, 0.502])[-1].passed is True


def test_images_beyond_the_expected_ones_are_counted(check_log):
    text = "\n".join("class_id: 1, prob: 0.7" for _ in range(3))
    assert check_log(text, [0.3, 0.7], count=3)[-1].passed is True
    assert check_log(text, [0.3, 0.7], count=4)[-1].passed is False


@pytest.mark.parametrize("word", ["nan", "inf", "-0.5", "1.5"])
def test_no_probability(check_log, word):
    [check] = check_log(f"class_id: 1, prob: {word}")
    assert check.passed is False


def test_no_class(check_log):
    assert [check.passed for check in check_log("done")] == [False]
    assert [check.passed for check in check_log("boxes: 3", must_classify=False)] == [None]


def test_a_model_that_could_not_be_run(check_log):
    assert [check.passed for check in check_log("class_id: 1, prob: 0.7")] == [True, None]


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


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([1.3, 1.4, 1.2, 1.0, 0.8], True),
        ([1.4, 1.4, 1.4, 1.4, 1.4], False),
        ([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], False),
        ([1.0, 1.1, 1.2, float("nan"), float("nan")], False),
        ([1.4, 1.0, 0.8, 0.6], None),
        ([], None),
    ],
)
def test_the_loss_must_fall(losses, verdict):
    assert check_learning(losses, None).passed is verdict


def test_a_loss_at_chance_is_said_to_be_so():
    check = check_learning([1.45, 1.44, 1.42, 1.41, 1.40], 4)
    assert check.passed is True
    assert check.detail.endswith("no better than guessing among 4 classes (1.386)")
    assert "guessing" not in check_learning([1.45, 1.44, 1.42, 1.1, 1.0], 4).detail


def test_an_accuracy_at_chance_is_said_to_be_so(judge):
    step = _step(judge, StepKind.EVAL)
    for name in ("circle", "cross", "square", "triangle"):
        (judge.plan.root / "lite_data/train" / name).mkdir(parents=True)
    _log(judge, step, " * Acc@1 0.250 Acc@5 1.0")
    [accuracy, chance] = judge.judge(step, {})
    assert (accuracy.passed, chance.passed) == (True, None)
    assert chance.detail == "Acc@1 0.25 is no better than guessing among 4 classes"
    _log(judge, step, " * Acc@1 0.313 Acc@5 1.0")
    assert len(judge.judge(step, {})) == 1


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
        return ModelReport(checks=[Check("x", True, "")])

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
