from __future__ import annotations

import inspect
import shutil

import pytest

from lowbit.cli.scripts.export_model import export_model
from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage
from lowbit.deploy import read_inference_yml

MODEL = "--model=tests.tiny_net:TinyNet"


def test_defaults():
    defaults = {name: value.default for name, value in inspect.signature(export_model).parameters.items()}
    ours = {"format_", "trust_code"}
    assert set(defaults) == {"model", "img_size", "save_inference_dir", "pretrained", "num_classes"} | ours
    assert str(defaults["save_inference_dir"]) == "."


def described(folder):
    return read_inference_yml(folder / "inference.yml")


def test_as_it_was_trained(run, trained, tmp_path):
    weights = trained / "checkpoints" / "best.pdparams"
    result = run("export_model.py", MODEL, f"--pretrained={weights}", f"--save-inference-dir={tmp_path}")
    assert result.code == 0, result
    assert "compared in Paddle Inference" in result.out
    assert {"inference.json", "inference.pdiparams", "inference.yml"} <= {
        file.name for file in tmp_path.iterdir()
    }
    assert described(tmp_path).Global.image_shape == (3, 32, 32)
    assert described(tmp_path).classes == ["circle", "cross", "square", "triangle"]
    assert described(tmp_path).ops == read_inference_yml(trained / "export" / "inference.yml").ops


def test_another_size(run, trained, tmp_path):
    weights = trained / "checkpoints" / "best.pdparams"
    options = [MODEL, f"--pretrained={weights}", f"--save-inference-dir={tmp_path}", "--img-size=64"]
    assert run("export_model.py", *options).code == 0
    assert described(tmp_path).Global.image_shape == (3, 64, 64)
    assert described(tmp_path).ops == [ResizeImage(resize_short=73), CropImage(size=64), NormalizeImage()]


def test_weights_that_nothing_is_known_of(run, trained, tmp_path):
    shutil.copy(trained / "checkpoints" / "best.pdparams", tmp_path / "given.pdparams")
    options = [MODEL, f"--pretrained={tmp_path / 'given'}", f"--save-inference-dir={tmp_path}"]
    assert run("export_model.py", *options).code == 0
    assert described(tmp_path).Global.image_shape == (3, 224, 224)
    assert described(tmp_path).classes == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([MODEL], "give the weights with --pretrained"),
        ([MODEL, "--pretrained=nowhere"], "no weights at nowhere.pdparams or nowhere.safetensors"),
        (["--model=resnet81", "--pretrained=WEIGHTS"], "resnet81"),
        (["--model=resnet20", "--pretrained=WEIGHTS"], "its weights do not fit the model"),
        ([MODEL, "--num-classes=5", "--pretrained=WEIGHTS"], "Only the classifier differs"),
    ],
)
def test_mistakes(run, trained, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    weights = str(trained / "checkpoints" / "best.pdparams")
    assert (
        message in run("export_model.py", *(option.replace("WEIGHTS", weights) for option in options)).error
    )
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_scales_in_every_call_does_so_in_paddle_and_not_in_onnx(run, low_precision, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(low_precision, folder)
    weights = folder / "checkpoints" / "best.pdparams"
    options = (MODEL, f"--pretrained={weights}", f"--save-inference-dir={tmp_path / 'served'}")
    result = run("export_model.py", *options)
    assert result.code == 0 and "anew in every call" not in result.out, result
    result = run("export_model.py", *options, "--format=onnx")
    assert result.code == 0 and "2 layers choose the scales of their inputs anew" in result.out, result
    assert (tmp_path / "served/inference.onnx").is_file()
