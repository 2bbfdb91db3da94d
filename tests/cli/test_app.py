from __future__ import annotations

import warnings

import paddle
import pytest

from lowbit.cli.app import run_command
from lowbit.errors import LowbitError
from lowbit.version import __version__

HELP = [
    ("lowbit", "train"),
    ("lowbit", "eval"),
    ("lowbit", "export"),
    ("lowbit", "infer"),
    ("lowbit", "plan"),
    ("lowbit", "doctor"),
    ("lowbit", "demo"),
    ("lowbit", "data", "lite"),
    ("train.py",),
    ("export_model.py",),
    ("infer.py",),
]


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_teaches_with_examples_and_shows_no_markup(run, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    result = run(*words, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert words[-1] in result.out.split("Example")[1]  # an example is a command line to copy
    assert "**" not in result.out
    assert "`" not in result.out


def test_the_commands_of_lowbit(run):
    result = run("lowbit", "--help")
    for command in ("train", "eval", "export", "infer", "plan", "doctor", "demo", "data"):
        assert f"│ {command} " in result.out
    assert "lowbit demo" in result.out


def test_without_arguments_there_is_help(run):
    result = run("lowbit")
    assert "Usage:" in result.out + result.err
    assert "doctor" in result.out + result.err


def test_version(run):
    assert run("lowbit", "--version").out == f"lowbit {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lowbit", "trian"), "train"),
        (("lowbit", "train"), "--config"),
        (("lowbit", "train", "--epoch=2", "-c=x.yaml"), "--epochs"),
        (("train.py", "--batchsize=2"), "--batch-size"),
        (("train.py", "--epochs=two"), "--epochs"),
        (("train.py", "extra"), "extra"),
        (("infer.py",), "--img-path"),
    ],
)
def test_a_misspelt_command_line_is_an_error_with_a_hint(run, words, message):
    result = run(*words)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_what_the_user_can_mend_is_one_message_and_exit_code_2(capsys, monkeypatch):
    monkeypatch.setattr("sys.path", [])

    def command() -> None:
        raise LowbitError("the config c.yaml has a typo")

    with warnings.catch_warnings(), pytest.raises(SystemExit) as stop:
        run_command(command)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.err == "error: the config c.yaml has a typo\n"
    assert printed.out == ""


def test_our_own_bugs_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("sys.path", [])

    def command() -> None:
        raise ZeroDivisionError

    with warnings.catch_warnings(), pytest.raises(ZeroDivisionError):
        run_command(command)


def test_an_interruption_is_exit_code_130(run, config_file, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lowbit.training.loop.train", interrupt)
    assert run("lowbit", "train", "-c", config_file).code == 130
    assert run("train.py").code == 130


def test_an_interruption_in_a_backward_pass_is_exit_code_130(capsys):
    class Interrupted(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            raise KeyboardInterrupt  # as Ctrl-C does; Paddle raises an OSError with its name

    x = paddle.ones([2])
    x.stop_gradient = False
    with warnings.catch_warnings(), pytest.raises(SystemExit) as stopped:
        run_command(Interrupted.apply(x).sum().backward)
    assert stopped.value.code == 130 and not capsys.readouterr().err


def test_a_warning_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.path", [])
    with warnings.catch_warnings():
        run_command(lambda: warnings.warn("only one class", stacklevel=1))
    assert capsys.readouterr().err == "warning: only one class\n"


def test_files_where_one_stands_are_not_modules(monkeypatch, tmp_path):
    """A `paddle.py` in the current folder must not run; models asked for by name are found there still."""
    monkeypatch.chdir(tmp_path)
    path: list[str] = []
    monkeypatch.setattr("sys.path", path)
    with warnings.catch_warnings():
        run_command(lambda: None)
    assert path == []
