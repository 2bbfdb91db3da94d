"""Early stopping, the time that is left, and what a run ends with."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.files import link_atomically, write_atomically
from lowbit.training.loop import train
from lowbit.training.run_directory import RunClock, RunDirectory
from tests.support.runs import records, tiny_config, tiny_values


def open_run(path, checkpoint_dir="checkpoints"):
    return RunDirectory(path, checkpoint_dir)


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path):
    held = pytest.raises(LowbitError, match=r"another run \(process \d+\) is writing into")
    with open_run(tmp_path / "run"), held:
        open_run(tmp_path / "run").__enter__()
    with open_run(tmp_path / "run"):  # free again
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LowbitError, match=r"cannot write into the output folder .*file/run"):
        open_run(tmp_path / "file" / "run").__enter__()


@pytest.mark.parametrize("checkpoint_dir", ["checkpoints", "."])
def test_only_a_runs_own_files_are_moved_aside(tmp_path, checkpoint_dir):
    """`train.py` writes into the current folder by default, where the user's files are."""
    mine = {"train.py", "notes.txt", "resnet.pdparams"}
    for name in mine:
        (tmp_path / name).write_text("mine")
    with open_run(tmp_path, checkpoint_dir) as run:
        assert run.move_aside_earlier_run() is None
        run.record("Global: {}\n", {"paddle": "3.3.1"})
        for name in ("latest.lowbit", "latest.pdparams", "model_0.pdopt", "best.lowbit"):
            (run.checkpoints / name).write_text("run")
        assert json.loads((tmp_path / "run.json").read_text())["environment"] == {"paddle": "3.3.1"}
        aside = run.move_aside_earlier_run()
        assert aside == tmp_path / "earlier" / "1"
        assert {p.name for p in (aside / checkpoint_dir).iterdir()} >= {"latest.lowbit", "model_0.pdopt"}
        assert (aside / "config.yaml").read_text() == "Global: {}\n"
        assert run.newest_whole(pytest.fail) is None
        run.record("Global: {}\n", {})
        assert run.move_aside_earlier_run() == tmp_path / "earlier" / "2"
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_what_a_killed_run_was_writing_is_removed(tmp_path):
    with open_run(tmp_path) as run:
        (run.checkpoints / ".latest.lowbit.123.part").write_text("half")
        (run.checkpoints / "latest.lowbit").write_text("whole")
    with open_run(tmp_path) as run:
        assert [path.name for path in run.checkpoints.iterdir()] == ["latest.lowbit"]


def test_the_time_left_is_of_the_steps_done_here():
    times = iter([0.0, 5.0, 10.0])
    clock = RunClock(total=30, done=10, now=lambda: next(times))
    assert clock.seconds_left(10) is None  # none done yet
    assert clock.seconds_left(15) == 5.0 / 5 * 15
    assert clock.seconds() == 10.0


def test_a_run_ends_with_accuracies_duration_and_the_next_command(tmp_path, capsys):
    folder = train(tiny_config(tmp_path / "a run"), quiet=True)
    first, second, third = capsys.readouterr().out.splitlines()
    evaluated = [record["top1"] for record in records(folder, "eval")]
    assert first.startswith(f"Best top-1 {100 * max(evaluated):.2f} % (epoch ")
    assert f"last {100 * evaluated[-1]:.2f} %; took " in first
    assert second == f"Run folder: {folder}" and third == f"Next: lowbit export '{folder}'"
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert summary["best_top1"] == max(evaluated) and not summary["stopped_early"]
    assert summary["epochs"] == 2


def test_a_log_says_epoch_of_epochs_and_the_time_left(tmp_path, capsys):
    train(tiny_config(tmp_path / "run"))
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("epoch ")]
    assert told[0].startswith("epoch 1 of 2, step 12 of 12, ") and told[0].endswith(" left")
    assert told[1] == "epoch 2 of 2, step 12 of 12, 0.0 s left"


def frozen(folder, **settings):
    """A run that learns nothing: its top-1 never rises after the first epoch."""
    values = tiny_values(folder, **settings)
    values["Optimizer"] = {"lr": {"name": "Constant", "learning_rate": 0.0}}
    for layer in ("Train", "Eval"):
        values["DataLoader"][layer]["sampler"] |= {"batch_size": 360, "shuffle": False}
    return values


def test_a_run_stops_when_its_accuracy_no_longer_rises(tmp_path, capsys, monkeypatch):
    from lowbit.training.session import Session

    accuracies = iter([0.5, 0.6, 0.6, 0.55, 0.9])
    monkeypatch.setattr(Session, "evaluate", lambda *_: {"loss": 1.0, "top1": next(accuracies)})
    folder = train(validate(frozen(tmp_path / "run", epochs=9, early_stop=2), {}, "c"))
    assert "stopped early: top-1 has not risen for 2 epochs" in capsys.readouterr().out
    assert len(records(folder, "train")) == 4
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert (summary["best_epoch"], summary["epochs"], summary["stopped_early"]) == (2, 4, True)
    again = validate(frozen(tmp_path / "run", epochs=9, early_stop=2, checkpoints="auto"), {}, "c")
    train(again)
    assert len(records(folder, "train")) == 4  # it stays stopped
    assert next(accuracies) == 0.9


def test_early_stopping_needs_validation_images(tmp_path):
    values = tiny_values(tmp_path / "run", early_stop=2)
    del values["DataLoader"]["Eval"]
    with pytest.raises(LowbitError, match="early stopping goes by validation accuracy"):
        train(validate(values, {}, "c"))


def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_rubbish(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        write_atomically(target, fail)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_others_may_read_what_the_users_umask_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", lambda file: file.write_text("x"))
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_link_follows_no_later_replacement(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write_atomically(first, lambda file: file.write_text("one"))
    link_atomically(first, second)
    write_atomically(first, lambda file: file.write_text("two"))
    assert second.read_text() == "one"
    link_atomically(first, second)  # over an existing name
    assert second.read_text() == "two"


def test_where_links_are_impossible_it_is_a_copy(tmp_path, monkeypatch):
    first = tmp_path / "first"
    first.write_text("one")

    def refuse(*_arguments: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    link_atomically(first, tmp_path / "second")
    assert (tmp_path / "second").read_text() == "one"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB, where that can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_the_old_file_stays(small_disk):
    target = small_disk / "latest.lowbit"
    write_atomically(target, lambda file: file.write_bytes(b"x" * 30_000))
    with pytest.raises(LowbitError, match=r"latest\.lowbit: the disk is full; the previous one is untouched"):
        write_atomically(target, lambda file: file.write_bytes(b"y" * 60_000))
    assert target.read_bytes() == b"x" * 30_000
    assert [path.name for path in small_disk.iterdir()] == ["latest.lowbit"]


def test_the_clean_up_does_not_hide_why_a_file_cannot_be_written(tmp_path, monkeypatch):
    """As in a read-only folder; there, removing the temporary file fails as well."""

    def read_only(*_args, **_options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(LowbitError, match=r"cannot write .*report\.html: Read-only file system$"):
        write_atomically(tmp_path / "report.html", lambda file: read_only())
    (tmp_path / "file").write_text("")
    with pytest.raises(LowbitError, match=r"cannot write .*: Not a directory$"):
        write_atomically(tmp_path / "file" / "report.html", lambda file: file.write_text("x"))


def test_text_that_is_no_unicode_is_an_error(tmp_path):
    with pytest.raises(LowbitError, match=r"cannot write .*: '\\+ud800' cannot be encoded in UTF-8"):
        write_atomically(tmp_path / "file", lambda file: file.write_text("a\ud800", "utf-8"))
    assert list(tmp_path.iterdir()) == []
