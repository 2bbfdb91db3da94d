from __future__ import annotations

import shutil

from lowbit.deploy import read_inference_yml
from tests.cli.conftest import tiny_values, write_config


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
