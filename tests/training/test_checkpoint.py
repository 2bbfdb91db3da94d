from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from lowbit.digest import DamagedFile
from lowbit.errors import LowbitError
from lowbit.training.checkpoint import (
    find_checkpoint,
    link_checkpoint,
    read_checkpoint,
    save_checkpoint,
    save_for_ecosystem,
)
from lowbit.training.optimizers import build_optimizer, create_state
from tests.support.runs import a_checkpoint
from tests.support.tiny_net import build_tiny


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
    with pytest.raises(LowbitError, match=r"latest\.lowbit is (damaged|not a readable lowbit checkpoint)"):
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


def test_every_flipped_byte_is_found(tmp_path):
    """All of the header, where flips could also make another valid file, and some of the tensors."""
    path = tmp_path / "x.lowbit"
    save_checkpoint(path, a_checkpoint())
    content = path.read_bytes()
    for at in range(len(content)):
        for mask in (1, 0x20, 0xFF):
            path.write_bytes(content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :])
            with pytest.raises(DamagedFile):
                read_checkpoint(path)


def without_digest(content: bytes) -> bytes:
    """The file as lowbit wrote it before there were digests."""
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    return safetensors.numpy.save(safetensors.numpy.load(content), {"lowbit": metadata["lowbit"]})


def test_a_file_without_a_digest_opens_with_a_line_in_the_log(tmp_path, caplog):
    path = tmp_path / "x.lowbit"
    save_checkpoint(path, a_checkpoint())
    with caplog.at_level(logging.WARNING, "lowbit"):
        read_checkpoint(path)
        assert not caplog.messages
        path.write_bytes(without_digest(path.read_bytes()))
        assert read_checkpoint(path).progress == a_checkpoint().progress
    assert len(caplog.messages) == 1 and "x.lowbit carries no digest" in caplog.messages[0]


def test_the_same_state_makes_the_same_file(tmp_path):
    for name in ("a", "b"):
        save_checkpoint(tmp_path / f"{name}.lowbit", a_checkpoint())
    assert (tmp_path / "a.lowbit").read_bytes() == (tmp_path / "b.lowbit").read_bytes()


@pytest.mark.parametrize(
    "key, value",
    [
        ("progress", 5),
        ("progress", {"epoch": "three"}),
        ("progress", {"epoch": -1}),
        ("progress", {"best": float("nan")}),
        ("progress", {"meter": "long"}),
        ("progress", {"surprise": 1}),
        ("config", []),
        ("classes", "0123"),
        ("classes", [1, 2]),
        ("model_name", None),
        ("scaler", 1),
        ("environment", {"a": 1}),
        ("order", {"seed": "x"}),
        ("recipe", "w4a4"),
        ("teacher", 7),
        ("format", "1"),
        ("surprise", 1),
    ],
)
def test_forged_metadata_is_one_line(tmp_path, key, value):
    described = {"format": 1, "progress": {}, "scaler": {}, "config": {}, "model_name": "m", "classes": []}
    described |= {"environment": {}, "order": {}} | {key: value}
    content = safetensors.numpy.save({}, {"lowbit": json.dumps(described)})
    (tmp_path / "x.lowbit").write_bytes(content)
    with pytest.raises(LowbitError, match=r"x\.lowbit is not a readable") as error:
        read_checkpoint(tmp_path / "x.lowbit")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "3", "null", '{"format": 1}', "9" * 5000])
def test_metadata_that_is_no_description_is_one_line(tmp_path, text):
    (tmp_path / "x.lowbit").write_bytes(safetensors.numpy.save({}, {"lowbit": text}))
    with pytest.raises(LowbitError, match=r"x\.lowbit is not a readable") as error:
        read_checkpoint(tmp_path / "x.lowbit")
    assert "\n" not in str(error.value)
