"""Steps that pass, fail, end each other, and are interrupted."""

from __future__ import annotations

import time

import pytest

from lowbit.demo import runner as demo_run
from lowbit.demo.runner import run_stages
from lowbit.demo.steps import Step
from lowbit.errors import LowbitError
from lowbit.tipc.process import Outcome


def step(tmp_path, title: str, *arguments: str, **more) -> Step:
    log = tmp_path / f"{title}.log"
    return Step(title=title, arguments=arguments, log=log, summary=lambda: f"{title} is done", **more)


def test_real_processes_and_their_errors(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    stages = [
        [step(tmp_path, "version", "--version")],
        [step(tmp_path, "broken", "compare", "only_one")],
        [step(tmp_path, "never", "--version")],
    ]
    with pytest.raises(LowbitError) as error:
        run_stages(stages, at_once=2)
    assert str(error.value).startswith(
        f"broken failed (exit code 2); the end of {tmp_path / 'broken.log'}:\n"
    )
    assert "error: give two runs or more" in str(error.value)
    assert (tmp_path / "version.log").read_text().startswith("lowbit ")
    assert not (tmp_path / "never.log").exists()
    printed = capfd.readouterr().out
    assert "1/3  version" in printed and "version is done" in printed and "2/3  broken" in printed
    assert "3/3" not in printed and "broken is done" not in printed


@pytest.fixture
def programs(monkeypatch):
    """What a step does, by its first argument; it gets `on_line` and `is_interrupted`."""
    found = {}

    def run_program(arguments, *, on_line, is_interrupted, **_where):
        code = found[arguments[3]](on_line, is_interrupted)
        return Outcome(seconds=1.0, exit_code=code)

    monkeypatch.setattr(demo_run, "run_program", run_program)
    return found


def _until_ended(_on_line, is_interrupted) -> int:
    deadline = time.monotonic() + 600  # against a hang
    while not is_interrupted():
        assert time.monotonic() < deadline, "nobody ended it"
        time.sleep(0.001)
    return -15


def test_one_that_fails_ends_the_other_and_is_the_one_that_is_named(tmp_path, programs):
    programs.update(long=_until_ended, bad=lambda *_: 3)
    stage = [step(tmp_path, "long", "long"), step(tmp_path, "bad", "bad")]
    with pytest.raises(LowbitError, match=r"^bad failed \(exit code 3\)"):
        run_stages([stage], at_once=2)


def test_ctrl_c_ends_the_step_and_no_other_begins(tmp_path, programs, monkeypatch, capfd):
    class Asked(demo_run.Interruption):
        def __enter__(self):
            programs["asking"] = lambda *_: setattr(self, "asked", True) or -15
            return self

    monkeypatch.setattr(demo_run, "Interruption", Asked)
    stages = [[step(tmp_path, "asking", "asking"), step(tmp_path, "next", "next")]]
    with pytest.raises(KeyboardInterrupt):
        run_stages(stages, at_once=1)
    assert "continues from here" in capfd.readouterr().out


def test_what_must_be_seen_is_shown_and_progress_is_read(tmp_path, programs, monkeypatch, capfd):
    def train(on_line, _is_interrupted) -> int:
        on_line("Training resnet20: 1437 images, 23 steps an epoch")
        on_line("products of integers are simulated in floats: no compiler")
        on_line("warning: something")
        on_line("[Epoch 1, iter: 23] top1: 0.5, loss: 1.0")
        return 0

    updates = []
    monkeypatch.setattr(demo_run.Progress, "update", lambda self, task, **values: updates.append(values))
    programs["train"] = train
    run_stages([[step(tmp_path, "train", "train", epochs=4)]], at_once=2)
    printed = capfd.readouterr().out
    assert "    train: products of integers are simulated in floats: no compiler\n" in printed
    assert "    train: warning: something\n" in printed
    assert "1437 images" not in printed
    assert updates == [{"completed": 2.0, "words": "epoch 2/4"}]
