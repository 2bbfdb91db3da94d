from __future__ import annotations

import pytest

from lowbit.tipc import make_plan, read_config


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
