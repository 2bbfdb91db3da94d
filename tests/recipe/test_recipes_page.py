"""docs/recipes.md says what is true: its recipes, words, defaults and tables."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

from lowbit.kernels.gemm import INTEGER_SCALES
from lowbit.models import build_model
from lowbit.numerics import observer_names, rounding_names, scaling_names
from lowbit.recipe import PaddleSlimConfig, Recipe, list_recipes, make_recipe, parse_quant_config
from lowbit.recipe.dialects.low_precision import OPERANDS, OperandBlock
from lowbit.recipe.spec import CLIPS, FULL_SPEC, SIGNS, SpecSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/recipes.md").read_text("utf-8")


def _section(title: str) -> str:
    return re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def _rows(title: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in _section(title).splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_its_recipes_are_valid():
    others = [(ROOT / f"docs/{name}.md").read_text("utf-8") for name in ("low_precision", "find_the_layer")]
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE + "".join(others), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    for values in map(yaml.safe_load, blocks):
        if values.keys() & {"matmul", "progressive"}:  # a part of a recipe
            rules = [{"forward": {"weight": {"grid": "int2"}}}]
            values = {"rules": rules, "calibration": {"steps": 2}, **values}
        assert make_recipe(values).plans(build_model("resnet20", 10))


def test_the_files_it_names_are_those_there():
    cells = re.findall(r"^\| (`(?:ptq|qat|qt)_[^|]*) \|", PAGE, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == {recipe.name for recipe in list_recipes()}


def test_which_scales_run_in_integers():
    table = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` (\w+), `(\w+)` (\w+) \|$", PAGE, re.MULTILINE)
    found = {
        (layer, name): {first: its, second: letters} for layer, name, first, its, second, letters in table
    }
    assert found == {
        (layer, name): operands
        for layer, products in INTEGER_SCALES.items()
        for name, operands in products.items()
    }


def test_keys_and_words_of_a_spec():
    rows = _rows("What is set")
    assert list(rows) == list(SpecSettings.model_fields)
    assert {key: row[0].strip("`") for key, row in rows.items()} == FULL_SPEC.as_words()
    words = {"observer": observer_names(), "scaling": scaling_names(), "rounding": rounding_names()}
    for key, valid in {**words, "clip": CLIPS, "sign": SIGNS}.items():
        written = {word.split("(")[0] for word in re.findall(r"`([\w().]+)`", " ".join(rows[key]))}
        assert set(valid) <= written, key


def test_settings_of_the_model_as_a_whole():
    found = {key: yaml.safe_load(row[0].strip("`")) for key, row in _rows("The model as a whole").items()}
    expected = {}
    for name, section in Recipe(rules=[{"skip": True}]).model_dump(exclude={"rules"}).items():
        if isinstance(section, dict):
            expected |= {f"{name}.{key}": value for key, value in section.items()}
        elif section is None:  # a section that is left out; the page has its keys
            expected |= {key: None for key in found if key == name or key.startswith(f"{name}.")}
        else:
            expected[name] = section
    assert found == expected


def test_keys_and_defaults_of_paddleslim():
    rows = {
        key: row for key, row in _rows("PaddleSlim's dialect").items() if key in PaddleSlimConfig.model_fields
    }
    found = {key: yaml.safe_load(row[0].strip("`")) for key, row in rows.items()}
    assert found == PaddleSlimConfig().model_dump()


@pytest.mark.parametrize("key", ["weight_quantize_type", "activation_quantize_type"])
def test_what_paddleslims_types_become(key):
    table = re.findall(r"^\| (`.*?) \| `(\S+)` \| `(\S+)` \| `(\S+)` \|$", PAGE, re.MULTILINE)
    written = {word: row[1:] for row in table for word in re.findall(r"`(\w+)`", row[0])}
    operand = "weight" if key.startswith("weight") else "input"
    words = re.findall(r"'(\w+)'", str(PaddleSlimConfig.model_fields[key].annotation))
    assert words
    for word in words:
        spec = getattr(parse_quant_config({key: word}).recipe().rules[0].forward, operand)
        given = spec.model_dump()
        given |= {"scaling": "window(10000)"} if given["scaling"] == "window" else {}
        assert (given["grid"], given["granularity"], given["scaling"]) == written[word]


def test_blocks_of_low_precision_training():
    table = re.findall(r"^\| `(\w+_config)` \| (.*?) \|", PAGE, re.MULTILINE)
    found = [(block, tuple(re.findall(r"`(\S+)`", operands))) for block, operands in table]
    assert found == [entry for blocks in OPERANDS.values() for entry in blocks.items()]


def test_keys_of_low_precision_blocks():
    section = _section("The dialect of low-precision training")
    rows = re.findall(r"^\| (`.*?) \| (.*?)\|", section.split("| key of a block |")[1], re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row[0])}
    assert keys == set(OperandBlock.model_fields)


def test_the_python_runs(monkeypatch, tmp_path, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(ROOT)
    (tmp_path / "page.py").write_text("".join(blocks), "utf-8")
    runpy.run_path(str(tmp_path / "page.py"))
    out = capsys.readouterr().out
    assert "\nint4-narrow N\n" in out
    assert "'forward': None" in out
