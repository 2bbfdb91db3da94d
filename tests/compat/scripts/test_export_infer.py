from __future__ import annotations

import inspect
import shutil

import pytest
import typer

from lowbit.compat.scripts.export_infer import export_model, infer, yes_no_option
from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage
from lowbit.deploy import read_inference_yml
from tests.support.commands import LINE

MODEL = "--model=tests.support.tiny_net:TinyNet"


def test_defaults_of_export_model():
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
def test_mistakes_of_export_model(run, trained, tmp_path, monkeypatch, options, message):
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
    assert result.code == 0 and "inputs in every call" not in result.out, result
    result = run("export_model.py", *options, "--format=onnx")
    assert result.code == 0 and "2 layers choose the scales of their inputs in every call" in result.out, (
        result
    )
    assert (tmp_path / "served/inference.onnx").is_file()


def test_defaults_of_infer():
    defaults = {name: value.default for name, value in inspect.signature(infer).parameters.items()}
    expected = {"use_gpu": "False", "max_batch_size": 16, "batch_size": 1, "benchmark": "False", "warmup": 0}
    assert expected.items() <= defaults.items()
    assert {"model_dir", "img_path", "resize_size", "crop_size"} <= set(defaults)


@pytest.mark.parametrize("no", ["False", "false", "0", "no"])
def test_answers(run, trained, lite, no):
    options = [f"--use-gpu={no}", "--batch-size=4", f"--benchmark={no}"]
    result = run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={lite / 'val'}", *options)
    assert result.code == 0, result
    assert len(result.out.splitlines()) == 16
    assert all(LINE.match(line) for line in result.out.splitlines())


def test_the_benchmark_report_comes_with_the_answers(run, trained, lite):
    image = lite / "val" / "cross" / "cross_0.jpg"
    options = ["--use-gpu=False", "--benchmark=True", "--warmup=2"]
    result = run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={image}", *options)
    assert result.code == 0, result
    first, *report = result.out.splitlines()
    assert LINE.match(first)
    assert all(" root INFO: " in line for line in report)
    for word in (
        "drivier_version",
        "paddle_version",
        "enable_mkldnn",
        "precision: fp32",
        "postprocess_time(ms)",
    ):
        assert word in result.out


def test_sizes_replace_those_of_the_export(run, trained, lite):
    image = lite / "val" / "cross" / "cross_0.jpg"
    common = [f"--model-dir={trained / 'export'}", f"--img-path={image}"]
    exported = run("infer.py", *common)
    assert run("infer.py", *common, "--resize-size=36", "--crop-size=32").out == exported.out
    assert run("infer.py", *common, "--resize-size=200", "--crop-size=32").out != exported.out
    message = run("infer.py", *common, "--resize-size=56", "--crop-size=48").error  # it takes 32x32 only
    assert "32" in message


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--batch-size=17", "--batch-size 17 is above --max-batch-size 16"),
        ("--use-gpu=True", "is not available"),
        ("--img-path=nowhere", "no image or folder nowhere"),
        ("--model-dir=nowhere", "the model folder nowhere does not exist"),
    ],
)
def test_mistakes_of_infer(run, trained, lite, option, message):
    common = [f"--model-dir={trained / 'export'}", f"--img-path={lite / 'val'}"]
    assert message in run("infer.py", *common, option).error


def test_a_yes_or_no_that_is_neither(run, trained, lite):
    result = run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={lite}", "--use-gpu=maybe")
    assert result.code == 2
    assert "expected True or False, got 'maybe'" in " ".join(result.err.replace("│", " ").split())


def test_a_folder_without_images(run, trained, tmp_path):
    message = run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={tmp_path}").error
    assert str(tmp_path) in message


@pytest.fixture
def onnx(run, trained, tmp_path):
    weights = trained / "checkpoints/best.pdparams"
    result = run(
        "export_model.py", f"--pretrained={weights}", f"--save-inference-dir={tmp_path}", "--format=onnx"
    )
    assert result.code == 0, result
    return tmp_path / "inference.onnx"


def test_the_same_answers_as_paddle_inference(run, onnx, trained, lite):
    images = lite / "val"
    result = run("onnx_infer.py", f"--onnx_file={onnx}", f"--img_path={images}", "--batch_size=4")
    assert result.code == 0, result
    title, *lines = result.out.splitlines()
    assert title == "ONNXRuntime predict: "
    assert len(lines) == 16 and all(LINE.match(line) for line in lines)
    assert (
        lines == run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={images}").out.splitlines()
    )
    folder = run("onnx_infer.py", f"--onnx_file={onnx.parent}", f"--img_path={images}")
    assert folder.out.splitlines()[1:] == lines


def test_no_file(run, tmp_path, lite):
    result = run("onnx_infer.py", f"--onnx_file={tmp_path / 'x.onnx'}", f"--img_path={lite}")
    assert "no ONNX file" in result.error


def test_the_short_side_may_be_another_one(run, onnx, lite):
    image = f"--img_path={lite / 'val/cross/cross_0.jpg'}"
    result = run("onnx_infer.py", f"--onnx_file={onnx}", image, "--crop_size=200")
    assert result.code == 0, result
    assert result.out != run("onnx_infer.py", f"--onnx_file={onnx}", image).out


@pytest.mark.parametrize(("text", "value"), [("True", True), ("0", False), ("yes", True), (None, None)])
def test_words(text, value):
    assert yes_no_option(help="").callback(text) is value


def test_other_words():
    with pytest.raises(typer.BadParameter, match="expected True or False, got 'maybe'"):
        yes_no_option(help="").callback("maybe")
