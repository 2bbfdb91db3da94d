from __future__ import annotations

import json

import pytest

from lowbit.config import load_config
from lowbit.demo.steps import TRAININGS, make_folder, make_stages
from lowbit.errors import LowbitError
from lowbit.recipe import load_recipe
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
