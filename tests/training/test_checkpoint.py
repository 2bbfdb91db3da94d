from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowbit.errors import LowbitError
from lowbit.training.checkpoint import (
    Checkpoint,
    Progress,
    find_checkpoint,
    link_checkpoint,
    read_checkpoint,
    save_checkpoint,
    save_for_ecosystem,
)
from lowbit.training.optimizers import build_optimizer, create_state
from tests.tiny_net import build_tiny


def a_checkpoint() -> Checkpoint:
    return Checkpoint(
        model={
            "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
            "empty": np.zeros((0,), "f4"),
        },
        optimizer={"conv.weight/velocity": np.full((2, 3), 0.1, np.float32)},
        progress=Progress(epoch=3, batch=7, step=77, best=0.9, meter=[1.5, 2.0], bad_images=["a.jpg"]),
        scaler={"scale": 32768.0},
        config={"Global": {"epochs": 5}},
        model_name="tiny",
        classes=["猫", "dog"],
        environment={"OMP_NUM_THREADS": "1"},
        order={"batch_size": 4},
    )


def test_what_was_saved_is_read_back_to_the_last_bit(tmp_path):
    saved = a_checkpoint()
    save_checkpoint(tmp_path / "latest.lowbit", saved)
    read = read_checkpoint(tmp_path / "latest.lowbit")
    for part in ("model", "optimizer"):
        before, after = getattr(saved, part), getattr(read, part)
        assert before.keys() == after.keys()
        assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert read.progress == saved.progress
    assert (read.scaler, read.config, read.classes, read.order) == (
        saved.scaler,
        saved.config,
        saved.classes,
        saved.order,
    )


@pytest.mark.parametrize("tenths", range(10))
def test_a_truncated_checkpoint_is_refused_by_name(tmp_path, tenths):
    path = tmp_path / "latest.lowbit"
    save_checkpoint(path, a_checkpoint())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * tenths // 10])
    with pytest.raises(LowbitError, match=r"latest\.lowbit is not a readable lowbit checkpoint"):
        read_checkpoint(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", b"\xff" * 100])
def test_a_foreign_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "x.lowbit"
    path.write_bytes(content)
    with pytest.raises(LowbitError, match=r"x\.lowbit is not a readable"):
        read_checkpoint(path)


def test_a_newer_format_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("lowbit.training.checkpoint._FORMAT", 2)
    save_checkpoint(tmp_path / "x.lowbit", a_checkpoint())
    monkeypatch.undo()
    with pytest.raises(LowbitError, match="newer lowbit"):
        read_checkpoint(tmp_path / "x.lowbit")


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(LowbitError, match=r"no checkpoint .*nothing\.lowbit"):
        read_checkpoint(tmp_path / "nothing.lowbit")


@pytest.mark.parametrize(
    "given", ["run", "run/checkpoints", "run/checkpoints/latest", "run/checkpoints/latest.pdparams"]
)
def test_a_checkpoint_is_found_by_folder_and_by_the_ecosystems_names(tmp_path, given):
    path = tmp_path / "run" / "checkpoints" / "latest.lowbit"
    path.parent.mkdir(parents=True)
    save_checkpoint(path, a_checkpoint())
    assert find_checkpoint(tmp_path / given) == path
    assert find_checkpoint(tmp_path / "elsewhere") is None


def test_paddles_own_loader_reads_the_companions(tmp_path):
    import paddle

    from lowbit.config.optimizer import OptimizerSection

    model = build_tiny()
    optimizer = build_optimizer(OptimizerSection(), model)
    create_state(optimizer)
    path = tmp_path / "latest.lowbit"
    save_for_ecosystem(path, model, optimizer)
    save_checkpoint(path, a_checkpoint())
    link_checkpoint(path, tmp_path / "best.lowbit")
    loaded = paddle.load(str(tmp_path / "best.pdparams"))
    assert loaded.keys() == model.state_dict().keys()
    np.testing.assert_array_equal(loaded["head.weight"].numpy(), model.head.weight.numpy())
    assert (tmp_path / "best.pdopt").is_file()


def test_the_current_folder_may_hold_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint(Path(".")) is None
    save_checkpoint(tmp_path / "latest.lowbit", a_checkpoint())
    assert find_checkpoint(Path(".")) == Path("latest.lowbit")


def test_shapes_stay_also_that_of_a_single_number(tmp_path):
    checkpoint = a_checkpoint()
    checkpoint.model = {"scalar": np.float32(0.5).reshape(()), "columns": np.ones((4, 6), "f4").T[::2]}
    save_checkpoint(tmp_path / "x.lowbit", checkpoint)
    read = read_checkpoint(tmp_path / "x.lowbit").model
    assert read["scalar"].shape == () and read["columns"].shape == (3, 4)
