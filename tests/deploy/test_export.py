from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.static import InputSpec

import lowbit
from lowbit import QAT
from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage
from lowbit.deploy import (
    PaddleEngine,
    export_model,
    export_onnx,
    export_paddle_int8,
    find_model_files,
    read_inference_yml,
)
from lowbit.deploy.export import (
    agrees,
    check_finite,
    check_image_shape,
    drafting,
    expected_logits,
    put_in_place,
    save_static,
    untranslatable,
)
from lowbit.errors import LowbitError
from tests.support.tiny_net import build_tiny


def logits_of(model, images):
    model.eval()
    return model(paddle.to_tensor(images)).numpy()


def test_writes_the_three_files_and_nothing_else(tiny, export, tmp_path):
    exported = export(tiny, tmp_path / "new" / "export")
    assert sorted(os.listdir(exported.directory)) == [
        "inference.json",
        "inference.pdiparams",
        "inference.yml",
    ]
    assert exported.size == sum(p.stat().st_size for p in exported.directory.iterdir())
    description = read_inference_yml(exported.yml)
    assert description.Global.model_name == "tiny" and description.Global.image_shape == (3, 16, 16)
    assert description.classes == ["ant", "bee", "cat", "dog"] and description.topk == 5
    assert set(description.Global.sha256) == {"inference.json", "inference.pdiparams"}


def test_other_files_in_the_folder_stay(tiny, export, tmp_path):
    (tmp_path / "latest.pdparams").write_text("weights")
    export(tiny, tmp_path)
    assert (tmp_path / "latest.pdparams").read_text() == "weights"


def test_twice_in_a_row_the_second_model_counts(tiny, export, tmp_path, images):
    export(tiny, tmp_path)
    tiny.head.bias.set_value(paddle.to_tensor([1.0, 2.0, 3.0, 4.0]))
    export(tiny, tmp_path)
    assert paddle.in_dynamic_mode()
    np.testing.assert_allclose(PaddleEngine(tmp_path).run(images), logits_of(tiny, images), rtol=1e-4)


def test_another_file_name(tiny, export, tmp_path, images):
    exported = export(tiny, tmp_path, file_name="best")
    assert exported.model.name == "best.json" and exported.yml.name == "best.yml"
    assert PaddleEngine(tmp_path, file_name="best").run(images).shape == (8, 4)


def train(model, optimizer, steps, seed):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        images = paddle.to_tensor(rng.standard_normal((4, 3, 16, 16), dtype=np.float32))
        loss = nn.functional.cross_entropy(model(images), paddle.to_tensor(rng.integers(0, 4, 4)))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()


def test_training_goes_on_as_if_there_had_been_no_export(build, export, tmp_path):
    """Bit for bit: parameters, batch norm's statistics, momentum and dropout's random numbers."""
    final = []
    for with_export in (False, True):
        model = build(seed=3)
        optimizer = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
        paddle.seed(5)
        train(model, optimizer, 2, seed=1)
        if with_export:
            export(model, tmp_path)
        train(model, optimizer, 2, seed=2)
        final.append([value.numpy() for value in model.state_dict().values()])
    assert all(np.array_equal(a, b) for a, b in zip(*final, strict=True))


def test_modes_and_gradients_stay(tiny, export, tmp_path):
    tiny.train()
    tiny.norm.eval()  # a frozen batch norm in a training model
    tiny.conv.weight.stop_gradient = True
    tiny(paddle.rand([2, 3, 16, 16])).sum().backward()
    gradient = tiny.head.weight.grad.numpy()
    before = {name: value.numpy() for name, value in tiny.state_dict().items()}
    export(tiny, tmp_path)
    assert tiny.training and tiny.drop.training and not tiny.norm.training
    assert tiny.conv.weight.stop_gradient and not tiny.head.weight.stop_gradient
    assert np.array_equal(tiny.head.weight.grad.numpy(), gradient)
    assert all(np.array_equal(value.numpy(), before[name]) for name, value in tiny.state_dict().items())


def test_modes_come_back_after_a_failure_too(tiny, export, tmp_path):
    with pytest.raises(LowbitError):
        export(tiny, tmp_path, image_shape=(1, 16, 16))
    assert tiny.training and tiny.drop.training
    assert list(tmp_path.iterdir()) == []


def test_a_shape_that_does_not_fit_names_the_layer(tiny, export, tmp_path):
    with pytest.raises(
        LowbitError, match=r'tiny does not run on images of 1x16x16.*layer "conv" \(Conv2D\).*channels'
    ):
        export(tiny, tmp_path, image_shape=(1, 16, 16))


@pytest.mark.parametrize("shape", [(16, 16), (3, 0, 16), (3, 16, 16, 16), (3, 16.0, 16)])
def test_an_impossible_shape(tiny, export, tmp_path, shape):
    with pytest.raises(LowbitError, match=r"image_shape must be \(channels, height, width\)"):
        export(tiny, tmp_path, image_shape=shape)


def test_wrong_number_of_class_names(tiny, export, tmp_path):
    with pytest.raises(LowbitError, match="4 outputs, but 2 class names"):
        export(tiny, tmp_path, classes=["a", "b"])


def test_no_class_names_are_allowed(tiny, export, tmp_path):
    assert read_inference_yml(export(tiny, tmp_path, classes=[]).yml).classes is None


class TwoOutputs(nn.Layer):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        return self.head(x.mean([2, 3])), x


class FrozenNumber(TwoOutputs):
    """Takes a number out of Python state: every call differs, the program keeps the one it saw."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.head(x.mean([2, 3])) * float(self.calls)


class OddlyNamedSelf(TwoOutputs):
    def forward(this, x):
        return this.head(x.mean([2, 3]))


class WithoutParameters(nn.Layer):
    def forward(self, x):
        return x.mean([2, 3])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (TwoOutputs, "must return one tensor of logits.*returns tuple"),
        (FrozenNumber, "answers differently from the model.*became a constant"),
        (OddlyNamedSelf, r"could not translate OddlyNamedSelf\.forward.*not called self"),
        (WithoutParameters, "no parameters"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(network, message, export, tmp_path):
    with pytest.raises(LowbitError, match=message):
        export(network(), tmp_path, model_name="odd")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tiny, export, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LowbitError, match=r"cannot write the exported model to .*file.*Not a directory"):
        export(tiny, tmp_path / "file" / "export")


def test_a_full_disk(tiny, export, tmp_path, monkeypatch):
    """Paddle writes what fits and reports success; here it is cut short as on a real full disk."""
    save = paddle.jit.save

    def cut_short(model, path, **options):
        save(model, path, **options)
        with open(path + ".pdiparams", "r+b") as file:
            file.truncate(100)

    export(tiny, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(paddle.jit, "save", cut_short)
    monkeypatch.setattr("lowbit.deploy.export.shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(LowbitError, match="No space left on device"):
        export(tiny, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("survives", range(4))
def test_a_crash_between_the_moves_leaves_a_whole_model_or_none(
    survives, tiny, export, tmp_path, monkeypatch, images
):
    export(tiny, tmp_path)
    tiny.head.bias.set_value(paddle.to_tensor([9.0, 0.0, 0.0, 0.0]))
    moves = iter(range(10))
    replace = os.replace

    def crash_later(source, target):
        if next(moves) == survives:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash_later)
    if survives < 3:
        with pytest.raises(KeyboardInterrupt):
            export(tiny, tmp_path)
        with pytest.raises(LowbitError, match=r"no inference\.json"):
            find_model_files(tmp_path)
    else:
        export(tiny, tmp_path)
        np.testing.assert_allclose(PaddleEngine(tmp_path).run(images), logits_of(tiny, images), rtol=1e-4)
    assert not list(tmp_path.glob(".exporting-*"))


def test_the_format_of_paddle_2(tiny, export, tmp_path, images):
    """With Paddle's old program format the model is a .pdmodel; a .json from before does not stay."""
    export(tiny, tmp_path)
    command = [sys.executable, "-m", "tests.support.export_in_old_format", tmp_path]
    environment = os.environ | {"FLAGS_enable_pir_api": "0"}
    root = Path(__file__).parents[2]
    subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True)
    assert not (tmp_path / "inference.json").exists()
    for onednn in (False, True):
        logits = PaddleEngine(tmp_path, onednn=onednn).run(images)
        np.testing.assert_allclose(logits, np.load(tmp_path / "logits.npy"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("last", [CropImage(size=24), ResizeImage(size=(24, 24))])
def test_images_that_are_prepared_at_another_size_than_exported(tiny, export, tmp_path, last):
    wanted = r"make images of 3x24x24 .* exported for 3x16x16; set Global\.image_shape=\[3,24,24\]"
    with pytest.raises(LowbitError, match=wanted):
        export(tiny, tmp_path, transform_ops=[ResizeImage(resize_short=32), last, NormalizeImage()])
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 0), (3, 4.0, 4), [1, 2, 3, 4]])
def test_a_shape_that_is_none(shape):
    with pytest.raises(LowbitError, match="image_shape must be"):
        check_image_shape(shape)


def test_the_models_answers(build, images):
    assert expected_logits(build(), images, "tiny", ["a", "b", "c", "d"]).shape == (8, 4)


def test_other_class_names(build, images):
    with pytest.raises(LowbitError, match="has 4 outputs, but 1 class names"):
        expected_logits(build(), images, "tiny", ["a"])


def test_images_that_do_not_fit(build, images):
    with pytest.raises(LowbitError, match=r'does not run on images of 1x16x16.*layer "conv"'):
        expected_logits(build(), images[:, :1], "tiny")


def test_answers_that_are_no_logits(images):
    with pytest.raises(LowbitError, match="must return one tensor of logits"):
        expected_logits(nn.Identity(), images, "tiny")


def test_what_paddle_cannot_translate():
    error = untranslatable(ValueError("(InvalidArgument) 4 != 3."), nn.Identity(), "net")
    assert "could not translate Identity.forward" in str(error)
    assert np.char.count(str(error), "4 != 3") == 1


@pytest.mark.parametrize(
    ("onednn", "plain", "quantized", "serves"),
    [(0.04, 0.001, True, True), (0.4, 0.1, True, True), (0.6, 0.1, True, False), (0.6, 0.1, False, True)],
)
def test_onednn_serves_unless_it_is_far_slower(tmp_path, monkeypatch, onednn, plain, quantized, serves):
    """Which simulated quantization is there: 30 times slower for MobileNetV2."""
    monkeypatch.setattr(
        "lowbit.deploy.export._seconds", lambda engine, _images: onednn if engine.options.onednn else plain
    )
    small = paddle.nn.Sequential(paddle.nn.Flatten(), paddle.nn.Linear(12, 2))
    if quantized:
        lowbit.quantize(small, {"weight_bits": 8}, data=[paddle.rand([4, 3, 2, 2])])
    made = export_model(
        small, tmp_path, model_name="small", image_shape=(3, 2, 2), transform_ops=[], classes=["a", "b"]
    )
    assert read_inference_yml(made.yml).Global.onednn is serves
    assert PaddleEngine(tmp_path).options.onednn is serves
