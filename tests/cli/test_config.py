from __future__ import annotations

import json

import pytest

from tests.support.paddleclas import RESNET18


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/good.yaml").write_text(RESNET18, "utf-8")
    (tmp_path / "typo.yaml").write_text(RESNET18.replace("epochs", "epocs"), "utf-8")
    (tmp_path / "unknown.yaml").write_text(RESNET18.replace("ResNet18", "ResNet19"), "utf-8")
    return tmp_path


def test_a_folder_with_good_and_bad_ones(run, folder):
    result = run("lowbit", "config", "check", str(folder))
    assert result.code == 1
    assert "1 of 3 configs load (33.3 %)" in result.out
    assert 'Global.epocs: unknown key, did you mean "epochs"?' in result.out
    assert 'unknown model "ResNet19"' in result.out


def test_json_names_every_file(run, folder):
    result = run("lowbit", "config", "check", str(folder), "--json", "--build")
    found = {entry["file"].rpartition("/")[2]: entry for entry in json.loads(result.out)}
    assert result.code == 1 and set(found) == {"good.yaml", "typo.yaml", "unknown.yaml"}
    good = found["good.yaml"]
    assert good["loads"] and good["builds"] and good["model"] == "ResNet18" and good["reason"] is None
    assert not found["typo.yaml"]["loads"] and "epocs" in found["typo.yaml"]["reason"]


def test_one_good_config_by_name_and_with_an_override(run):
    assert run("lowbit", "config", "check", "digits").code == 0
    result = run("lowbit", "config", "check", "digits", "-q", "-o", "Arch.name=resnet999")
    assert result.code == 1 and result.out.strip() == "0 of 1 configs load (0.0 %)"


def test_a_folder_without_configs(run, tmp_path):
    assert "no .yaml files" in run("lowbit", "config", "check", str(tmp_path)).error


def test_training_names_the_unknown_model_before_it_looks_for_data(run, folder):
    message = run("lowbit", "train", "-c", str(folder / "unknown.yaml")).error
    assert 'unknown.yaml: unknown model "ResNet19"' in message
