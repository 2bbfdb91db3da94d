from __future__ import annotations

import json

import pytest

from lowbit.cli.options import complete_config, complete_model, complete_recipe
from lowbit.config import list_configs
from lowbit.data import open_dataset
from lowbit.models import list_models, model_names, ppcls_is_installed, ppcls_names
from lowbit.recipe import list_recipes


def test_recipes_say_what_they_are_for_and_what_they_reached(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = run("lowbit", "recipes").out
    for recipe in list_recipes():
        assert f"\n  {recipe.name}\n" in out
        assert " ".join(recipe.reached.split()) in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_recipes_as_json(run):
    assert json.loads(run("lowbit", "recipes", "--json").out) == [
        recipe.to_dict() for recipe in list_recipes()
    ]


def test_models_and_configs(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = run("lowbit", "models").out
    for entry in [*list_models(), *list_configs()]:
        assert entry.name in out and entry.description
    assert max(map(len, out.splitlines())) <= 80


def test_models_as_json(run):
    found = json.loads(run("lowbit", "models", "--json").out)
    assert [entry["name"] for entry in found if entry["type"] == "model"] == model_names()
    assert {entry["name"] for entry in found if entry["type"] == "config"} >= {"digits", "lite"}


@pytest.mark.skipif(not ppcls_is_installed(), reason="PaddleClas's package ppcls is not installed")
def test_models_of_paddleclas(run):
    found = json.loads(run("lowbit", "models", "--from", "ppcls", "--json").out)
    assert [entry["name"] for entry in found] == ppcls_names()
    out = run("lowbit", "models", "--from", "ppcls").out
    assert "PPLCNet_x1_0" in out and "Configs" not in out


@pytest.mark.parametrize(
    ("complete", "begun", "expected"),
    [
        (complete_recipe, "qat_w4a4", ["qat_w4a4", "qat_w4a4_pact"]),
        (complete_recipe, "./mine", []),
        (complete_config, "di", ["digits"]),
        (complete_model, "resnet2", ["resnet20"]),
    ],
)
def test_completion(complete, begun, expected):
    assert complete(begun) == expected


def test_a_plan_of_a_recipe_and_a_config_by_name(run):
    found = json.loads(run("lowbit", "plan", "-c", "digits", "--recipe", "qat_w4a4", "--json").out)
    assert (found["model"], found["recipe"]) == ("resnet20", "qat_w4a4")


def test_lite_data(run, tmp_path):
    folder = tmp_path / "lite"
    result = run("lowbit", "data", "lite", folder)
    assert result.code == 0
    assert str(folder) in result.out
    assert (folder / "lite_data.tar").stat().st_size < 20e6
    assert [len(open_dataset(folder, split)) for split in ("train", "val")] == [16, 16]


def test_without_the_archive(run, tmp_path):
    run("lowbit", "data", "lite", tmp_path / "lite", "--no-tar")
    assert not (tmp_path / "lite" / "lite_data.tar").exists()


def test_where_one_stands(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("lowbit", "data", "lite").code == 0
    assert (tmp_path / "lite_data" / "train").is_dir()
