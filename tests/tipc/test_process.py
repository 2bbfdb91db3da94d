from __future__ import annotations

import os
import sys

from lowbit.tipc.process import run_program


def _python(code: str, tmp_path, **options):
    return run_program([sys.executable, "-c", code], folder=tmp_path, log=tmp_path / "p.log", **options)


def test_output_goes_to_the_log_and_line_by_line_to_the_caller(tmp_path):
    seen = []
    code = "import sys; print('one'); print('two', file=sys.stderr); print('50%', end='\\r'); sys.exit(3)"
    outcome = _python(code, tmp_path, on_line=seen.append)
    assert (outcome.exit_code, outcome.ended, outcome.left_behind) == (3, None, 0)
    assert seen == ["one", "two", "50%"]
    assert (tmp_path / "p.log").read_bytes() == b"one\ntwo\n50%\r"


def test_no_shell_has_a_say_in_the_arguments(tmp_path):
    words = ["$HOME", "a b", "`id`", "*", ";", "x\ny"]
    code = "import sys; print(ascii(sys.argv[1:]))"
    run_program([sys.executable, "-c", code, *words], folder=tmp_path, log=tmp_path / "p.log")
    assert (tmp_path / "p.log").read_text("utf-8").strip() == ascii(words)


def test_the_environment_is_added_to_or_taken_from(tmp_path, monkeypatch):
    monkeypatch.setenv("TAKEN", "1")
    monkeypatch.setenv("KEPT", "2")
    code = "import os; print([os.environ.get(name) for name in ('TAKEN', 'KEPT', 'ADDED')])"
    _python(code, tmp_path, environment={"TAKEN": None, "ADDED": ""})
    assert (tmp_path / "p.log").read_text("utf-8") == "[None, '2', '']\n"
    assert os.environ["TAKEN"] == "1"


def test_a_program_that_is_not_there(tmp_path):
    outcome = run_program([str(tmp_path / "nothing")], folder=tmp_path, log=tmp_path / "p.log")
    assert outcome.exit_code is None
    assert outcome.ended.startswith("could not be started: No such file or directory")


def test_a_log_that_cannot_be_written(tmp_path):
    (tmp_path / "logs").write_text("a file", "utf-8")
    outcome = run_program(["true"], folder=tmp_path, log=tmp_path / "logs/p.log")
    assert outcome.ended.startswith("could not be started: ")


def test_a_request_to_stop(tmp_path):
    asked = []
    outcome = _python(
        "print('up', flush=True); import time; time.sleep(600)",
        tmp_path,
        on_line=asked.append,
        is_interrupted=lambda: bool(asked),
    )
    assert outcome.ended == "interrupted"
    assert outcome.exit_code == -15  # it was asked before it was forced


def test_bytes_that_are_no_text(tmp_path):
    seen = []
    _python("import sys; sys.stdout.buffer.write(b'\\xff\\x00\\n')", tmp_path, on_line=seen.append)
    assert seen == ["\ufffd\x00"]
