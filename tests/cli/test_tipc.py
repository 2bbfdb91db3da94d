from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from lowbit.tipc import make_plan, read_config
from tests.support.chains import CONFIGS


def test_the_commands(run):
    out = run("lowbit", "tipc", "--help").out
    for word in ("plan", "prepare", "run", "report", "init"):
        assert f"│ {word} " in out


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
def test_mistakes_in_plan(run, arguments, message):
    assert message in run("lowbit", "tipc", "plan", *arguments).error


LITE = "lite_train_lite_infer"


@pytest.fixture
def config(repo, stand_in_model):
    return repo


def test_prepare_run_report(run, config, tmp_path):
    prepared = run("lowbit", "tipc", "prepare", config, LITE)
    assert (prepared.code, prepared.out.count("drawn")) == (0, 1)
    result = run("lowbit", "tipc", "run", config, LITE, "--device", "cpu", "--timeout", 100)
    assert result.code == 0, result
    assert result.out.count(" Run successfully with command - stand_in - ") == 4
    assert "Passed. stand_in, lite_train_lite_infer: 4 passed, in " in result.out
    report = run("lowbit", "tipc", "report", config, LITE, "--junit", tmp_path / "j.xml")
    assert (report.code, report.out) == (0, result.out[result.out.index("#  step") :].rsplit("Results:")[0])
    assert ET.parse(tmp_path / "j.xml").getroot()[0].get("tests") == "4"
    assert json.loads(run("lowbit", "tipc", "report", config, LITE, "--json").out)["passed"] is True


def test_a_failed_chain(run, config, monkeypatch):
    monkeypatch.setenv("STAND_IN", "loss")
    result = run("lowbit", "tipc", "run", config, LITE, "--device", "cpu")
    assert result.code == 1
    assert "failed: loss: the last one is nan" in result.out
    assert run("lowbit", "tipc", "report", config, LITE).code == 1


def test_without_a_card(run, config, monkeypatch):
    from lowbit.machine import PaddleBuild

    monkeypatch.setattr("lowbit.machine.paddle_build", lambda: PaddleBuild("3", "c", None, None, cards=0))
    config.write_text(config.read_text("utf-8").replace("gpu_list:-1", "gpu_list:0"), "utf-8")
    skipped = run("lowbit", "tipc", "run", config, LITE)
    assert skipped.code == 1
    assert "Nothing ran. stand_in, lite_train_lite_infer: 4 skipped" in skipped.out
    auto = run("lowbit", "tipc", "run", config, LITE, "--device", "auto")
    assert auto.code == 0, auto
    assert auto.out.startswith("Paddle sees no card here: everything runs on the CPU (--device auto)")


def test_mistakes_in_run_and_report(run, config, tmp_path):
    assert 'did you mean "auto"' in run("lowbit", "tipc", "run", config, LITE, "--device", "autoo").error
    assert "has not been run in this mode yet" in run("lowbit", "tipc", "report", config, LITE).error
    config.write_text(config.read_text("utf-8").replace(":stand_in.py train", ":null"), "utf-8")
    assert "has no command for" in run("lowbit", "tipc", "run", config, LITE, "--device", "cpu").error


def _lines(tmp_path, model: str, name: str = "train_infer_python.txt") -> list[str]:
    return (tmp_path / f"test_tipc/configs/{model}/{name}").read_text("utf-8").splitlines()


def test_defaults_without_a_question(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("lowbit", "tipc", "init", "my_net")
    assert result.code == 0, result
    assert "test_tipc/README.md" in result.out
    assert _lines(tmp_path, "my_net")[13] == "norm_train:train.py --model=my_net --lr=0.01"
    assert run("lowbit", "tipc", "init", "my_net").out == "Everything is there already.\n"


def test_options(run, tmp_path):
    commands = ["--train", "main.py fit", "--eval", "main.py test", "--export", "main.py save"]
    files = ["--data-path", "./d", "--image", "./i.jpg", "--checkpoint", "last", "--python", "python3.12"]
    files += ["--infer", "x.py"]
    chains = ["--chains", "norm,pact", "--root", tmp_path]
    assert run("lowbit", "tipc", "init", "net", *commands, *files, *chains).code == 0
    lines = _lines(tmp_path, "net", "train_pact_infer_python.txt")
    found = [lines[number - 1].partition(":")[2] for number in (3, 10, 11, 14, 17, 22, 27, 31)]
    assert found == [
        *("python3.12", "last", "./d", "main.py fit --pact_quant", "main.py test", "main.py save"),
        *("x.py", "./i.jpg"),
    ]
    config = tmp_path / "test_tipc/configs/net/train_pact_infer_python.txt"
    assert make_plan(read_config(config), "lite_train_lite_infer").steps


def test_questions_in_a_terminal(run, tmp_path, monkeypatch):
    asked = []

    def prompt(question: str, default: str) -> str:
        asked.append(question)
        return "fit.py" if question == "Training command" else default

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", prompt)
    assert run("lowbit", "tipc", "init", "net", "--root", tmp_path, "--chains", "norm").code == 0
    assert len(asked) == 7 and "Chains" not in " ".join(asked)
    lines = _lines(tmp_path, "net")
    assert (lines[13], lines[16]) == ("norm_train:fit.py", "eval:fit.py --test-only --model=net")
    asked.clear()
    assert run("lowbit", "tipc", "init", "net2", "--root", tmp_path, "--yes").code == 0
    assert asked == []


@pytest.mark.parametrize("name", ["../x", "a/b", ""])
def test_a_name_that_is_no_folder(run, tmp_path, name):
    assert "becomes the name of a folder" in run("lowbit", "tipc", "init", name, "--root", tmp_path).error


def test_files_that_are_there(run, tmp_path):
    run("lowbit", "tipc", "init", "net", "--root", tmp_path)
    other = ["lowbit", "tipc", "init", "net", "--root", tmp_path, "--train", "other.py"]
    assert "--force overwrites it" in run(*other).error
    assert run(*other, "--force").code == 0
