from __future__ import annotations

import json
import os
import signal

import numpy as np
import paddle
import pytest

from lowbit.accel import convolutions, onednn
from lowbit.accel.fused_norm import BatchNormNode
from lowbit.accel.norm_ops import norm_library
from lowbit.errors import LowbitError
from lowbit.machine import cpu_info
from lowbit.training import loop
from lowbit.training.checkpoint import read_checkpoint, save_checkpoint
from lowbit.training.loop import train
from lowbit.training.process import Ranks
from lowbit.training.session import open_session
from tests.support.runs import tiny_config, tiny_values, weights_hash


def records(folder, kind):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_a_run_learns_and_leaves_what_the_ecosystem_expects(tmp_path, capsys):
    folder = train(tiny_config(tmp_path / "run", epochs=3))
    losses = [record["loss"] for record in records(folder, "train")]
    assert losses[-1] < losses[0] * 0.9
    assert records(folder, "eval")[-1]["top1"] > 0.25
    names = {path.name for path in (folder / "checkpoints").iterdir()}
    assert names == {
        f"{name}.{suffix}"
        for name in ("latest", "best", "model_0", "model_1", "model_2")
        for suffix in ("lowbit", "pdparams", "pdopt")
    }
    out = capsys.readouterr().out
    assert out.count(" * Acc@1 ") == 3
    # A step of 12 batches, a line every 10 and at the end.
    assert "[Epoch 0, iter: 10] top1: 0." in out and "[Epoch 2, iter: 12] top1: 0." in out


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path):
    hashes = [
        weights_hash(train(tiny_config(tmp_path / name, epochs=1, seed=seed)) / "checkpoints/latest.lowbit")
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_stopping_at_every_step_of_an_epoch_and_resuming_changes_no_bit(tmp_path, monkeypatch):
    expected = weights_hash(train(tiny_config(tmp_path / "undisturbed")) / "checkpoints/latest.lowbit")
    expected_metrics = [record["loss"] for record in records(tmp_path / "undisturbed", "train")]

    class OneStep(loop.TrainingStep):
        def __call__(self, batch, learning_rate):
            result = super().__call__(batch, learning_rate)
            os.kill(os.getpid(), signal.SIGTERM)
            return result

    monkeypatch.setattr(loop, "TrainingStep", OneStep)
    folder = tmp_path / "disturbed"
    interruptions = 0
    while True:
        try:
            train(tiny_config(folder, checkpoints="auto"))
            break
        except KeyboardInterrupt:
            interruptions += 1
            assert read_checkpoint(folder / "checkpoints/latest.lowbit").progress.step == interruptions
    assert interruptions == 23  # two epochs of 12 steps; after the very last there is nothing to interrupt
    assert weights_hash(folder / "checkpoints/latest.lowbit") == expected
    assert [record["loss"] for record in records(folder, "train")] == pytest.approx(
        expected_metrics, rel=1e-12
    )


def test_a_checkpoint_after_the_last_batch_of_an_epoch_can_be_resumed(tmp_path, monkeypatch):
    """A run killed between its last step and the evaluation goes on with the evaluation."""
    expected = train(tiny_config(tmp_path / "calm", save_steps=12))

    def die(*_arguments, **_more):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(loop.Session, "evaluate", die)
        train(tiny_config(tmp_path / "killed", save_steps=12))
    assert read_checkpoint(tmp_path / "killed/checkpoints/latest.lowbit").progress.batch == 12
    resumed = train(tiny_config(tmp_path / "killed", save_steps=12, checkpoints="auto"))
    for kind in ("train", "eval"):
        before, after = records(expected, kind), records(resumed, kind)
        assert [record["loss"] for record in before] == [record["loss"] for record in after]
    assert weights_hash(resumed / "checkpoints/latest.lowbit") == weights_hash(
        expected / "checkpoints/latest.lowbit"
    )


@pytest.mark.parametrize("level, dtype", [("O1", "bf16"), ("O2", "fp16")])
def test_mixed_precision_resumes_bit_for_bit_with_its_scaler(tmp_path, level, dtype):
    def config(name, **settings):
        values = tiny_values(tmp_path / name, **settings)
        values["AMP"] = {"level": level, "dtype": dtype}
        return loop.Config.model_validate(values)

    straight = weights_hash(train(config("straight", epochs=2)) / "checkpoints/latest.lowbit")
    # Resumed from the end of the first epoch, with the same schedule over two.
    folder = tmp_path / "straight"
    again = weights_hash(
        train(config("again", epochs=2, checkpoints=str(folder / "checkpoints/model_0.lowbit")))
        / "checkpoints/latest.lowbit"
    )
    assert again == straight
    assert bool(read_checkpoint(folder / "checkpoints/latest.lowbit").scaler) == (dtype == "fp16")


class _Poison:
    """A training step whose loss is NaN at the given steps: the images are."""

    def __init__(self, monkeypatch, steps):
        original = loop.TrainingStep.__call__

        def poisoned(step, batch, learning_rate):
            if step._session.progress.step in steps:
                batch.images[0, 0, 0, 0] = np.nan
            return original(step, batch, learning_rate)

        monkeypatch.setattr(loop.TrainingStep, "__call__", poisoned)


def test_a_nan_step_is_skipped_counted_and_leaves_no_trace(tmp_path, monkeypatch, capsys):
    _Poison(monkeypatch, {3, 4})
    folder = train(tiny_config(tmp_path / "run", epochs=1))
    assert "step skipped (1 in a row, 1 in all)" in capsys.readouterr().out
    checkpoint = read_checkpoint(folder / "checkpoints/latest.lowbit")
    assert checkpoint.progress.bad_steps == 2
    assert all(np.isfinite(array).all() for array in checkpoint.model.values())
    assert records(folder, "train")[0]["bad_steps"] == 2
    assert np.isfinite(records(folder, "train")[0]["loss"])


def test_too_many_nan_steps_stop_the_run_and_name_the_last_good_checkpoint(tmp_path, monkeypatch):
    _Poison(monkeypatch, range(14, 100))
    with pytest.raises(
        LowbitError, match=r"3 steps in a row .*checkpoints/latest\.lowbit \(continue with --resume"
    ):
        train(tiny_config(tmp_path / "run", max_bad_steps=2))
    kept = read_checkpoint(tmp_path / "run/checkpoints/latest.lowbit")
    assert kept.progress.epoch == 1


def test_the_limit_counts_over_the_end_of_an_epoch(tmp_path, monkeypatch):
    _Poison(monkeypatch, range(5, 1000))
    with pytest.raises(LowbitError, match=r"16 steps in a row .*limit: Global\.max_bad_steps=15"):
        train(tiny_config(tmp_path / "run", max_bad_steps=15))


def test_a_finished_run_has_nothing_to_resume(tmp_path, capsys):
    folder = train(tiny_config(tmp_path / "run", epochs=1))
    before = weights_hash(folder / "checkpoints/latest.lowbit")
    train(tiny_config(folder, epochs=1, checkpoints="auto"))
    assert "nothing to train: 1 of 1 epochs are done" in capsys.readouterr().out
    assert weights_hash(folder / "checkpoints/latest.lowbit") == before
    assert len(records(folder, "train")) == 1


def test_a_second_run_moves_the_first_aside(tmp_path, capsys):
    folder = train(tiny_config(tmp_path / "run", epochs=1, seed=1))
    first = weights_hash(folder / "checkpoints/latest.lowbit")
    train(tiny_config(folder, epochs=1, seed=2))
    assert "held an earlier run: moved to" in capsys.readouterr().out
    assert weights_hash(folder / "earlier/1/checkpoints/latest.lowbit") == first
    assert weights_hash(folder / "checkpoints/latest.lowbit") != first


def test_resuming_into_a_folder_of_another_run_moves_that_one_aside(tmp_path, capsys):
    source = train(tiny_config(tmp_path / "source", epochs=1, seed=1))
    target = train(tiny_config(tmp_path / "target", epochs=1, seed=2))
    kept = weights_hash(target / "checkpoints/latest.lowbit")
    train(tiny_config(target, epochs=2, seed=1, checkpoints=str(source)))
    assert "held an earlier run: moved to" in capsys.readouterr().out
    assert weights_hash(target / "earlier/1/checkpoints/latest.lowbit") == kept
    assert [record["epoch"] for record in records(target, "train")] == [1]


def test_other_classes_are_refused_on_resume(tmp_path, monkeypatch):
    folder = train(tiny_config(tmp_path / "run", epochs=1))
    checkpoint = read_checkpoint(folder / "checkpoints/latest.lowbit")
    checkpoint.classes = [*checkpoint.classes[1:], checkpoint.classes[0]]
    save_checkpoint(folder / "checkpoints/latest.lowbit", checkpoint)
    with pytest.raises(LowbitError, match=r"trained on other classes \(1, 2, 3, 4, … 10 in all\)"):
        train(tiny_config(folder, epochs=2, checkpoints="auto"))


def test_a_failed_evaluation_loses_no_epoch(tmp_path, monkeypatch):
    def broken(*_arguments, **_more):
        raise LowbitError("val/cat/1.jpg: corrupt image")

    with monkeypatch.context() as patch, pytest.raises(LowbitError, match="corrupt"):
        patch.setattr(loop.Session, "evaluate", broken)
        train(tiny_config(tmp_path / "run", epochs=1))
    assert train(tiny_config(tmp_path / "run", epochs=1, checkpoints="auto"))
    assert [record["epoch"] for record in records(tmp_path / "run", "train")] == [0]
    assert len(records(tmp_path / "run", "eval")) == 1
    expected = train(tiny_config(tmp_path / "calm", epochs=1))
    assert records(tmp_path / "run", "eval")[0]["loss"] == records(expected, "eval")[0]["loss"]


def test_a_run_opens_with_what_it_trains_on(tmp_path, capsys, processor):
    train(tiny_config(tmp_path / "run", epochs=1))
    *notes, first = capsys.readouterr().out.split("\n[Epoch")[0].splitlines()
    assert any("AMD fix" in line for line in notes) is cpu_info().is_amd
    opening, figures = first.rsplit(": ", 1)
    assert opening.startswith("Training tests.support.tiny_net:TinyNet (10 classes) on cpu, convolutions in ")
    assert figures == "1437 images, 360 for validation, 12 steps an epoch"


def test_resuming_with_other_settings_says_so(tmp_path, capsys):
    folder = train(tiny_config(tmp_path / "run", epochs=1))
    values = tiny_values(folder, epochs=2, checkpoints="auto")
    values["AMP"] = {"level": "O1", "dtype": "bf16"}
    values["Optimizer"]["momentum"] = 0.8
    train(loop.Config.model_validate(values))
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if "resumed, but not as the same run: " in line)
    assert "AMP has changed; Optimizer has changed" in line  # and how bf16 is computed, where it can be


def test_processes_that_resumed_from_different_places_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "open_session", lambda *a, **k: _two_ranks(open_session(*a, **k)))
    with pytest.raises(LowbitError, match="resumed from different checkpoints"):
        train(tiny_config(tmp_path / "run"))


def _two_ranks(session):
    class Disagreeing(Ranks):
        def sum(self, values):
            return values + 1

    session.ranks = Disagreeing(rank=0, world=2)
    return session


def test_other_batches_in_the_middle_of_an_epoch_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        asked = {"asked": True, "_before": {}}
        patch.setattr(loop.Interruption, "__init__", lambda self: self.__dict__.update(asked))
        train(tiny_config(folder))
    with pytest.raises(LowbitError, match=r"middle of an epoch.*seed was 0, is 5"):
        train(tiny_config(folder, checkpoints="auto", seed=5))


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path):
    folder = train(tiny_config(tmp_path / "run", epochs=1))
    values = tiny_values(tmp_path / "other", checkpoints=str(folder))
    values["Arch"] = {"name": "resnet20", "class_num": 10}
    with pytest.raises(
        LowbitError, match=r"checkpoint of tests\.support\.tiny_net:TinyNet, the config trains resnet20"
    ):
        train(loop.Config.model_validate(values))


def test_resuming_from_nothing_says_what_to_do(tmp_path):
    with pytest.raises(LowbitError, match=r"no lowbit checkpoint .*--pretrained"):
        train(tiny_config(tmp_path / "run", checkpoints=str(tmp_path / "nowhere.pdparams")))


def test_more_classes_in_the_data_than_outputs_is_an_error(tmp_path):
    values = tiny_values(tmp_path / "run")
    values["Arch"]["class_num"] = 4
    with pytest.raises(LowbitError, match=r"training data has 10 classes, the model only 4 outputs"):
        train(loop.Config.model_validate(values))


def test_label_smoothing_is_paddles(tmp_path):
    from lowbit.config.schema import CrossEntropy
    from lowbit.training.losses import cross_entropy

    rng = np.random.default_rng(0)
    logits = paddle.to_tensor(rng.standard_normal((6, 5), dtype=np.float32) * 4)
    labels = paddle.to_tensor(rng.integers(0, 5, 6))
    smooth = paddle.nn.functional.label_smooth(paddle.nn.functional.one_hot(labels, 5), epsilon=0.1)
    expected = paddle.nn.functional.cross_entropy(logits, smooth, soft_label=True)
    assert float(cross_entropy(CrossEntropy(epsilon=0.1), logits, labels)) == pytest.approx(
        float(expected), rel=1e-6
    )


def test_convolutions_run_in_oneDNN_unless_the_config_says_no(tmp_path, capsys, monkeypatch):
    used = []
    prepared = onednn.prepared
    monkeypatch.setattr(
        onednn, "prepared", lambda *given, **named: used.append(given) or prepared(*given, **named)
    )
    convolutions._fastest.cache_clear()
    train(tiny_config(tmp_path / "paddle", epochs=1, fast_convolutions=False))
    assert "convolutions in Paddle" in capsys.readouterr().out and not used
    train(tiny_config(tmp_path / "onednn", epochs=1))
    assert "convolutions in oneDNN" in capsys.readouterr().out and used
    losses = [records(tmp_path / name, "eval")[0]["loss"] for name in ("paddle", "onednn")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_batch_norm_runs_in_our_kernels_unless_the_config_says_no(tmp_path, monkeypatch):
    used = []
    apply = BatchNormNode.apply
    monkeypatch.setattr(BatchNormNode, "apply", lambda *arguments: used.append(1) or apply(*arguments))
    train(tiny_config(tmp_path / "paddle", epochs=1, fast_norm_ops=False))
    assert not used
    train(tiny_config(tmp_path / "lowbit", epochs=1))
    assert bool(used) == (norm_library(wanted=True) == "lowbit")
    losses = [records(tmp_path / name, "eval")[0]["loss"] for name in ("paddle", "lowbit")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def _all_finite(folder):
    for path in (folder / "checkpoints").glob("*.lowbit"):
        read = read_checkpoint(path)
        for array in (*read.model.values(), *read.optimizer.values()):
            assert np.isfinite(array).all(), path


@pytest.mark.parametrize("rate", [1e300, 1e30, 1e20])
@pytest.mark.parametrize("settings", [{}, {"max_bad_steps": 1000}, {"save_steps": 1}])
def test_a_diverged_run_ends_in_an_error_and_saves_nothing_of_it(tmp_path, rate, settings):
    values = tiny_values(tmp_path / "run", epochs=1, **settings)
    values["Optimizer"]["lr"] = {"name": "Constant", "learning_rate": rate}
    with pytest.raises(LowbitError, match=r"the training has diverged: .*not saved; lower the learning rate"):
        train(loop.Config.model_validate(values))
    _all_finite(tmp_path / "run")


def test_the_last_good_checkpoint_survives_what_comes_after_it(tmp_path):
    folder = train(tiny_config(tmp_path / "run", epochs=1))
    before = weights_hash(folder / "checkpoints/latest.lowbit")
    values = tiny_values(folder, epochs=2, checkpoints="auto")
    values["Optimizer"]["lr"] = {"name": "Constant", "learning_rate": 1e300}
    with pytest.raises(LowbitError, match=r"has diverged.*The last good checkpoint is .*latest\.lowbit"):
        train(loop.Config.model_validate(values))
    assert weights_hash(folder / "checkpoints/latest.lowbit") == before
    _all_finite(folder)


def _damage(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.unlink()  # the other names of this file stay whole
    path.write_bytes(content)


def test_auto_takes_the_newest_whole_checkpoint_and_says_so(tmp_path, capsys):
    expected = weights_hash(train(tiny_config(tmp_path / "calm")) / "checkpoints/latest.lowbit")
    folder = train(tiny_config(tmp_path / "run"))
    for name in ("latest", "best", "model_1"):
        _damage(folder / f"checkpoints/{name}.lowbit")
    capsys.readouterr()
    train(tiny_config(folder, checkpoints="auto"))
    out = capsys.readouterr().out
    assert "model_0.lowbit, the newest intact checkpoint, because: " in out
    assert "latest.lowbit is damaged" in out
    assert weights_hash(folder / "checkpoints/latest.lowbit") == expected


def test_auto_stops_where_no_checkpoint_is_whole(tmp_path):
    folder = train(tiny_config(tmp_path / "run", epochs=1))
    for path in (folder / "checkpoints").glob("*.lowbit"):
        _damage(path)
    with pytest.raises(LowbitError, match=r"latest\.lowbit is damaged.*No other checkpoint there is whole"):
        train(tiny_config(folder, epochs=2, checkpoints="auto"))


@pytest.mark.parametrize("forge", ["shape", "dtype", "inf", "meter"])
def test_a_forged_state_is_one_line(tmp_path, forge):
    folder = train(tiny_config(tmp_path / "run", epochs=1))
    path = folder / "checkpoints/latest.lowbit"
    checkpoint = read_checkpoint(path)
    name = "conv.weight/velocity"
    found = checkpoint.optimizer[name]
    if forge == "meter":
        checkpoint.progress.meter = [1.0]
    else:
        other = {"shape": found[:1], "dtype": found.astype(np.int64), "inf": found * np.float32("inf")}
        checkpoint.optimizer[name] = other[forge]
    save_checkpoint(path, checkpoint)
    with pytest.raises(LowbitError) as error:
        train(tiny_config(folder, epochs=2, checkpoints="auto"))
    assert "\n" not in str(error.value)
