from __future__ import annotations

import hashlib

import pytest

from lowbit.deploy.model_files import ModelFiles, check_files, find_model_files, sha256
from lowbit.errors import LowbitError


def make(folder, *names):
    for name in names:
        (folder / name).write_bytes(name.encode())
    return folder


def test_paddle_3_files_go_before_paddle_2_files(tmp_path):
    make(tmp_path, "inference.json", "inference.pdmodel", "inference.pdiparams", "inference.yml")
    files = find_model_files(tmp_path)
    assert (files.model.suffix, files.yml) == (".json", tmp_path / "inference.yml")
    (tmp_path / "inference.json").unlink()
    assert find_model_files(str(tmp_path)).model.suffix == ".pdmodel"


def test_no_description_is_none(tmp_path):
    assert find_model_files(make(tmp_path, "m.json", "m.pdiparams"), "m").yml is None


def test_a_missing_folder_and_a_file_in_its_place(tmp_path):
    with pytest.raises(LowbitError, match=r"nowhere does not exist; give the folder"):
        find_model_files(tmp_path / "nowhere")
    make(tmp_path, "inference.json")
    with pytest.raises(LowbitError, match="is a file, not a folder"):
        find_model_files(tmp_path / "inference.json")


def test_an_empty_folder_and_one_with_another_model(tmp_path):
    with pytest.raises(LowbitError, match=r"no inference\.json in .*export a model first"):
        find_model_files(tmp_path)
    make(tmp_path, "qat_inference.json", "qat_inference.pdiparams", "config.json")
    with pytest.raises(LowbitError, match=r"other exported models: qat_inference$"):
        find_model_files(tmp_path)


def test_a_program_without_parameters(tmp_path):
    with pytest.raises(LowbitError, match=r"no inference\.pdiparams beside it"):
        find_model_files(make(tmp_path, "inference.json"))


def test_digests(tmp_path):
    make(tmp_path, "a.json", "a.pdiparams")
    files = ModelFiles(tmp_path / "a.json", tmp_path / "a.pdiparams", tmp_path / "a.yml")
    right = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (files.model, files.params)}
    assert sha256(files.model) == right["a.json"]
    check_files(files, right)
    with pytest.raises(LowbitError, match=r"a\.pdiparams is damaged: tensors in it are cut short"):
        check_files(files, {})  # without digests the tensors themselves are looked at, and these are none
    with pytest.raises(LowbitError, match=r"a\.pdiparams is damaged or belongs to another export.*a\.yml"):
        check_files(files, right | {"a.pdiparams": "0" * 64})


def test_a_run_folder_points_to_its_export(tmp_path):
    (tmp_path / "export").mkdir()
    make(tmp_path / "export", "inference.json", "inference.pdiparams")
    with pytest.raises(LowbitError, match=r"the exported model of this run is in .*export$"):
        find_model_files(tmp_path)
