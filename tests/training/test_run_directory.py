from __future__ import annotations

import json

import pytest

from lowbit.errors import LowbitError
from lowbit.training.run_directory import RunDirectory


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
