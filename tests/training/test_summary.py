"""Early stopping, the time that is left, and what a run ends with."""

from __future__ import annotations

import json

import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.training.loop import train
from lowbit.training.summary import RunClock
from tests.training.conftest import records, tiny_config, tiny_values


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
