from __future__ import annotations

import shutil

from lowbit.deploy import read_inference_yml
from tests.support.commands import tiny_values, write_config
from tests.support.processors import needs_vnni


def test_into_the_runs_folder(run, trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("export"))
    result = run("lowbit", "export", folder)
    assert result.code == 0, result
    assert f"to {folder / 'export'}" in result.out
    names = {file.name for file in (folder / "export").iterdir()}
    assert names == {"inference.json", "inference.pdiparams", "inference.yml"}
    described = read_inference_yml(folder / "export" / "inference.yml")
    assert described.classes == ["circle", "cross", "square", "triangle"]
    assert described.Global.image_shape == (3, 32, 32)


def test_a_config_and_weights_into_the_configs_folder(run, trained, lite, tmp_path):
    values = tiny_values(lite, tmp_path)
    values["Global"]["save_inference_dir"] = str(tmp_path / "served")
    config = write_config(tmp_path / "c.yaml", values)
    result = run("lowbit", "export", "-c", config, "--pretrained", trained / "checkpoints" / "best")
    assert result.code == 0, result
    assert (tmp_path / "served" / "inference.json").is_file()


def test_another_folder(run, trained, tmp_path):
    assert run("lowbit", "export", trained, "--output", tmp_path / "there").code == 0
    assert (tmp_path / "there" / "inference.json").is_file()


def test_without_weights(run, config_file, tmp_path):
    assert "--pretrained WEIGHTS" in run("lowbit", "export", "-c", config_file).error
    assert "no lowbit checkpoint there" in run("lowbit", "export", tmp_path).error


def test_weights_of_another_architecture(run, trained, lite, tmp_path):
    values = tiny_values(lite, tmp_path)
    values["Arch"] = {"name": "resnet20", "class_num": 4}
    config = write_config(tmp_path / "c.yaml", values)
    weights = trained / "checkpoints" / "best.pdparams"
    message = run("lowbit", "export", "-c", config, "--pretrained", weights).error
    assert "its weights do not fit the model" in message
    assert "missing from the file" in message
    assert "head.weight" in message


def test_a_file_in_the_way(run, trained, tmp_path):
    (tmp_path / "file").write_text("here first")
    assert (
        "cannot write the exported model to"
        in run("lowbit", "export", trained, "--output", tmp_path / "file").error
    )


def train_quantized(run, trained, lite, folder, granularity="per-tensor"):
    """A run in `folder`/q; returns its config."""
    config = write_config(folder / "c.yaml", tiny_values(lite, folder))
    recipe = folder / "recipe.yaml"
    input_ = f"{{grid: int8, scaling: moving_average, granularity: {granularity}}}"
    recipe.write_text(f"rules: [{{forward: {{input: {input_}, weight: {{grid: int8}}}}}}]\n")
    weights = trained / "checkpoints" / "best.pdparams"
    arguments = ("-c", config, "--recipe", recipe, "--pretrained", weights, "--output-dir", folder / "q")
    assert run("lowbit", "train", *arguments).code == 0
    return config


def test_a_quantized_run_in_both_formats(run, trained, lite, tmp_path):
    config = train_quantized(run, trained, lite, tmp_path)
    result = run("lowbit", "export", tmp_path / "q", "--target", "avx2")
    assert result.code == 0, result
    assert "smaller" in result.out and "uint8 with zero point 128" in result.out
    names = {file.name for file in (tmp_path / "q" / "export").iterdir()}
    assert names == {"inference.json", "inference.pdiparams", "inference.yml", "inference.onnx"}
    evaluated = run("lowbit", "eval", tmp_path / "q" / "export" / "inference.onnx", "-c", config)
    assert evaluated.code == 0, evaluated


def test_what_onnx_cannot_hold_is_said_or_an_error(run, trained, lite, tmp_path):
    train_quantized(run, trained, lite, tmp_path, granularity="C")
    result = run("lowbit", "export", tmp_path / "q")
    assert result.code == 0, result
    assert "No ONNX file: the input of layer" in result.out
    assert "has a scale per channel" in run("lowbit", "export", tmp_path / "q", "--format", "onnx").error


def test_onnx_alone_in_fp32(run, trained, tmp_path):
    result = run("lowbit", "export", trained, "--format", "onnx", "--output", tmp_path / "there")
    assert result.code == 0, result
    assert {file.name for file in (tmp_path / "there").iterdir()} == {"inference.onnx", "inference.yml"}
    assert "1.00x" in result.out
    assert read_inference_yml(tmp_path / "there" / "inference.yml").Global.image_shape == (3, 32, 32)


def test_an_unknown_target(run, trained):
    assert 'did you mean "vnni"' in run("lowbit", "export", trained, "--target", "vnn").error


@needs_vnni
def test_a_quantized_run_in_int8(run, trained, lite, tmp_path):
    config = train_quantized(run, trained, lite, tmp_path)
    result = run("lowbit", "export", tmp_path / "q", "--format", "paddle-int8")
    assert result.code == 0, result
    assert "2 layers in int8" in result.out and "smaller" in result.out
    described = read_inference_yml(tmp_path / "q" / "export" / "int8" / "inference.yml")
    assert described.Global.int8
    assert run("lowbit", "eval", tmp_path / "q" / "export" / "int8", "-c", config).code == 0


def test_int8_of_a_model_that_is_not_quantized(run, trained):
    assert "not quantized" in run("lowbit", "export", trained, "--format", "paddle-int8").error


def test_an_unknown_format(run, trained):
    assert 'no format "onx"' in run("lowbit", "export", trained, "--format", "onx").error


def test_scales_chosen_in_every_call_are_fixed_before_export(run, low_precision, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(low_precision, folder)
    result = run("lowbit", "export", folder)
    assert result.code == 0, result
    assert "2 layers choose the scales of their inputs in every call" in result.out
    assert "as trained" in result.out and "best_deployed.lowbit to" in result.out
    assert {"inference.json", "inference.onnx"} <= {file.name for file in (folder / "export").iterdir()}
    again = run("lowbit", "export", folder)
    assert again.code == 0 and "inputs in every call" not in again.out
    assert run("lowbit", "verify", folder, "--engines=paddle,onnxruntime", "--no-latency").code == 0


def test_without_training_images_scales_cannot_be_fixed(run, low_precision, lite, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(low_precision, folder)
    gone = ("-o", f"DataLoader.Train.dataset.path={tmp_path / 'gone'}")
    message = run("lowbit", "export", folder, *gone).error
    assert "gone" in message and "lowbit export --data-path IMAGES" in message
    result = run("lowbit", "export", folder, *gone, "--data-path", lite, "--format", "onnx")
    assert result.code == 0, result
