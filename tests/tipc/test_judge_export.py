from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowbit.tipc.finding import Request
from lowbit.tipc.judge_export import check_export
from lowbit.tipc.left_files import take_snapshot
from lowbit.tipc.process import Outcome
from lowbit.tipc.step import Step, StepKind


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
