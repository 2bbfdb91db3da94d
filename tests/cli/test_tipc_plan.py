from __future__ import annotations

import json

import pytest

from tests.tipc.conftest import CONFIGS

NORM, LITE = CONFIGS / "norm.txt", "lite_train_lite_infer"


def test_a_plan_from_any_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("lowbit", "tipc", "plan", NORM, LITE, "--device", "cpu", "--python", "python")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("CUDA_VISIBLE_DEVICES='' python ") == 9
    assert result.out.count("env -u CUDA_VISIBLE_DEVICES python -m paddle.distributed.launch ") == 1
    assert result.out.rstrip().endswith("10 commands.")
    assert list(tmp_path.iterdir()) == []


def test_json_and_the_cards_of_this_machine(run, monkeypatch):
    from lowbit.machine import PaddleBuild

    build = PaddleBuild("3", "c", "12", "9", cards=1)
    monkeypatch.setattr("lowbit.machine.paddle_build", lambda: build)
    found = json.loads(run("lowbit", "tipc", "plan", NORM, LITE, "--json").out)
    assert [step["skipped"] is None for step in found["steps"]] == [True] * 5 + [False] * 5


def test_what_the_original_would_have_run(run):
    result = run("lowbit", "tipc", "plan", NORM, "whole_infer", "--original")
    assert result.code == 0
    lines = result.out.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("python3.7 deploy/inference_python/infer.py --use-gpu=False --model-dir=")
    assert json.loads(run("lowbit", "tipc", "plan", NORM, "whole_infer", "--original", "--json").out) == lines


def test_the_dialect_of_paddleclas(run):
    config = CONFIGS / "paddleclas.txt"
    planned = json.loads(run("lowbit", "tipc", "plan", config, LITE, "--device", "cpu", "--json").out)
    assert planned["dialect"] == "paddleclas"
    assert {step["directory"] for step in planned["steps"]} == {".", "deploy"}
    shown = run("lowbit", "tipc", "plan", config, LITE, "--device", "cpu").out
    assert "(51-line layout, paddleclas)" in shown and "(cd deploy && CUDA_VISIBLE_DEVICES=''" in shown
    original = run("lowbit", "tipc", "plan", config, LITE, "--original").out
    forced = run("lowbit", "tipc", "plan", config, LITE, "--original", "--dialect", "generic").out
    assert "--devices=0,1" in original and "--gpus=0,1" in forced
    wrong = run("lowbit", "tipc", "plan", config, LITE, "--dialect", "clas")
    assert wrong.code == 2 and 'unknown dialect "clas"' in wrong.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((NORM, "whole_infr"), 'did you mean "whole_infer"'),
        ((NORM, "lite_train_whole_infer", "--device", "cpu"), "norm.txt, line 6: expected an entry for mode"),
        ((NORM, LITE, "--device", "gpu"), 'for what the config asks for, not "gpu"'),
        ((NORM, LITE, "--device", "cpuu"), 'did you mean "cpu"'),
        ((NORM, LITE, "--original", "--python", "x"), "--original shows what the original runs"),
        ((CONFIGS / "nrm.txt", LITE), "is not a file; did you mean"),
    ],
)
def test_mistakes(run, arguments, message):
    assert message in run("lowbit", "tipc", "plan", *arguments).error
