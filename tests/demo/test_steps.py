from __future__ import annotations

import json
import time

import pytest

from lowbit.config import load_config
from lowbit.demo import steps as demo_run
from lowbit.demo.steps import TRAININGS, DemoStep, make_folder, make_stages, run_stages
from lowbit.errors import LowbitError
from lowbit.recipe import load_recipe
from lowbit.tipc.process import Outcome
from tests.support.commands import OPTIONS


def test_the_settings_are_found_by_name(tmp_path, monkeypatch):
    make_folder(tmp_path / "new" / "demo")
    monkeypatch.chdir(tmp_path / "new" / "demo")
    assert load_config("digits").Arch.name == "resnet20"
    for training in TRAININGS:
        if training.recipe:
            assert load_recipe(training.recipe).rules


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LowbitError, match="--output-dir"):
        make_folder(tmp_path / "file" / "demo")


def test_the_trainings_are_those_that_were_promised():
    assert [one.title for one in TRAININGS] == ["fp32", "W8A8 PACT", "W4A4 LSQ", "W4A4G4"]
    assert [one.from_fp32 for one in TRAININGS] == [False, True, True, False]


def test_every_step_is_a_command_that_exists(tmp_path):
    for step in (step for stage in make_stages(tmp_path) for step in stage):
        options = {word for word in step.arguments if word.startswith("-")}
        assert options <= OPTIONS[f"lowbit {step.arguments[0]}"], step


def test_all_is_trained_before_anything_is_verified_and_times_are_measured_alone(tmp_path):
    stages = make_stages(tmp_path)
    commands = [{step.arguments[0] for step in stage} for stage in stages]
    assert commands == [{"train"}, {"train"}, {"verify"}, {"bench"}, {"report"}]
    assert [len(stage) for stage in stages] == [2, 2, 4, 1, 1]
    for step in stages[0]:
        assert "--pretrained" not in step.arguments
    for step in stages[1]:
        assert step.arguments[step.arguments.index("--pretrained") + 1].startswith(str(tmp_path / "fp32"))
    logs = [step.log for stage in stages for step in stage]
    assert len(set(logs)) == len(logs)


@pytest.mark.parametrize(
    ("log", "words"),
    [(" * Acc@1 0.728 Acc@5 0.975\n * Acc@1 0.961 Acc@5 1.000\n", "top-1 96.1%"), ("", "trained before")],
)
def test_what_came_of_a_training(tmp_path, log, words):
    step = make_stages(tmp_path)[0][0]
    step.log.parent.mkdir()
    step.log.write_text(log)
    assert step.summary() == words


def test_what_came_of_a_verification(tmp_path):
    step, *_ = make_stages(tmp_path)[2]
    (tmp_path / "fp32").mkdir()
    engines = [{"agreement": 1.0}, {"agreement": 0.9944}]
    (tmp_path / "fp32" / "verify.json").write_text(json.dumps({"engines": engines}))
    assert step.summary() == "at least 99.4% same class in 2 engines"


def step(tmp_path, title: str, *arguments: str, **more) -> DemoStep:
    log = tmp_path / f"{title}.log"
    return DemoStep(title=title, arguments=arguments, log=log, summary=lambda: f"{title} is done", **more)


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
