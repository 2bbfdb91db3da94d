from __future__ import annotations

import os

import numpy as np
import paddle
import pytest
from paddle.static import InputSpec

from lowbit import QAT
from lowbit.deploy import export_model, export_onnx, export_paddle_int8
from lowbit.deploy.export import agrees, check_finite, drafting, put_in_place, save_static
from lowbit.errors import LowbitError
from tests.support.tiny_net import build_tiny

SHAPE = (3, 16, 16)


def test_a_draft_is_gone_whatever_happens(tmp_path):
    for error in (None, ValueError):
        try:
            with drafting(tmp_path / "new", "it") as draft:
                (draft / "file").write_text("half")
                if error:
                    raise error
        except ValueError:
            pass
        assert os.listdir(tmp_path / "new") == []


def test_a_disks_error_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LowbitError, match="cannot write the model to there: "),
        drafting(tmp_path / "file" / "folder", "the model to there"),
    ):
        pass


def test_files_come_in_order_and_old_ones_go(tmp_path):
    (tmp_path / "model.pdmodel").write_text("old")
    with drafting(tmp_path, "it") as draft:
        for name in ("model.json", "model.pdiparams"):
            (draft / name).write_text("new")
        put_in_place(draft, tmp_path, ["model.pdiparams", "model.json"], old=["model.pdmodel", "no.such"])
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.pdiparams"]


def test_nothing_goes_before_the_new_files_are_there(tmp_path):
    (tmp_path / "model.json").write_text("old")
    with pytest.raises(LowbitError), drafting(tmp_path, "it") as draft:
        put_in_place(draft, tmp_path, ["model.json"], old=["model.json"])
    assert (tmp_path / "model.json").read_text() == "old"


def test_only_a_disks_errors_are_not_explained(tmp_path, monkeypatch):
    def fail_with(error):
        def save(*args, **kwargs):
            raise error

        monkeypatch.setattr(paddle.jit, "save", save)
        save_static(
            build_tiny(), tmp_path / "m", [InputSpec([None, *SHAPE])], lambda e: LowbitError("explained")
        )

    with pytest.raises(LowbitError, match="explained"):
        fail_with(OSError("(External) of Paddle, without a number"))
    with pytest.raises(OSError, match="full"):
        fail_with(OSError(28, "full"))


def test_agreement_is_relative_to_the_largest():
    expected = np.array([[1.0, -100.0]])
    assert agrees(expected + 0.9, expected, 0.01)
    assert not agrees(expected + 1.1, expected, 0.01)
    assert not agrees(expected[0], expected, 0.01)
    assert not agrees(expected * np.nan, expected, 0.01)


@pytest.mark.parametrize(
    ("name", "number"), [("conv.weight", "nan"), ("norm._variance", "inf"), ("head.bias", "-inf")]
)
def test_the_parameter_that_is_not_finite_is_named(name, number):
    model = build_tiny()
    check_finite(model, "tiny")
    tensor = dict(model.named_parameters())[name]
    values = tensor.numpy()
    values.flat[-1] = float(number)
    tensor.set_value(values)
    with pytest.raises(LowbitError, match=f"tiny has NaN or Inf in {name}: "):
        check_finite(model, "tiny")


@pytest.mark.parametrize("form", ["paddle", "int8", "onnx", "paddleslim"])
def test_no_format_takes_it(form, tmp_path):
    model = build_tiny()
    quanter = QAT()
    quanter.quantize(model)
    model(paddle.randn([2, *SHAPE]))
    model.head.weight.set_value(np.full(model.head.weight.shape, np.nan, np.float32))
    about = {"model_name": "tiny", "image_shape": SHAPE}
    with pytest.raises(LowbitError, match=r"NaN or Inf in head\.weight"):
        if form == "paddle":
            export_model(model, tmp_path, **about, transform_ops=[], classes=[])
        elif form == "int8":
            export_paddle_int8(model, tmp_path, **about, transform_ops=[], classes=[])
        elif form == "onnx":
            export_onnx(model, tmp_path / "m.onnx", **about)
        else:
            quanter.save_quantized_model(model, str(tmp_path / "m"), input_spec=[InputSpec([None, *SHAPE])])
    assert os.listdir(tmp_path) == []
