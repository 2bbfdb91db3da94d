"""Recipes by name, from files and from values, in any dialect; and back to YAML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.recipe import Recipe, TensorSpec, dump_recipe, list_recipes, load_recipe, make_recipe, operands_of
from lowbit.recipe.load import DIALECTS, read_rules

RECIPES_FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(RECIPES_FOLDER.glob("*.yaml"))


def _write(path: Path, text: str) -> Path:
    file = path / "recipe.yaml"
    file.write_text(text, "utf-8")
    return file


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
@pytest.mark.parametrize("model", ["resnet20", "mobilenet_v3_small", "mobilenet_v2"])
def test_the_recipes_that_come_with_lowbit_fit_any_model(file, model):
    first, *between, last = load_recipe(file).assign(build_model(model, 10))
    low_precision = file.name.startswith("qt_")
    assert [first.plan.is_full, last.plan.is_full] == [low_precision] * 2
    for assigned in between:
        assert assigned.plan.is_straight_through != low_precision
        why = assigned.plan.runs_in_integers(assigned.layer.type)
        assert [why[product.name] for product in assigned.plan.products()] == [None] * (1 + 2 * low_precision)


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_recipes_say_what_they_are_for(file):
    first = file.read_text("utf-8").partition("\n")[0]
    assert first.startswith("# lowbit ") and first.endswith(f"--recipe {file.stem}")


_PART = r"([WAG])(\d)_(minmax|mse)_(det|sto)"


@pytest.mark.parametrize(
    "file", [file for file in RECIPES if file.stem.startswith("qt_W")], ids=lambda f: f.stem
)
def test_names_of_low_precision_recipes_say_what_is_in_them(file):
    parts = {letter: rest for letter, *rest in re.findall(_PART, file.stem)}
    plan = load_recipe(file).plans(build_model("resnet20", 10))["layer2.1.conv1"]
    for product in plan.products():
        for operand, spec in operands_of(product).items():
            bits, observer, rounding = parts[{"weight": "W", "input": "A", "grad_output": "G"}[operand]]
            expected = TensorSpec(
                grid=f"int{bits}",
                observer=observer,
                rounding={"det": "nearest", "sto": "stochastic"}[rounding],
                granularity=spec.granularity,
                sign="auto" if operand == "input" else "fixed",
            )
            assert spec == expected


@pytest.mark.parametrize("bits", [4, 8])
def test_our_own_low_precision_recipes_run_in_integers(bits):
    file = next(file for file in RECIPES if file.stem == f"qt_w{bits}a{bits}g{bits}")
    plan = load_recipe(file).plans(build_model("resnet20", 10))["layer2.1.conv1"]
    specs = [spec for product in plan.products() for spec in operands_of(product).values()]
    assert {spec.grid.bits for spec in specs} == {bits}
    assert set(plan.runs_in_integers().values()) == {None}


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("name", ["qat_w{}a{}", "qat_w{}_mse_a{}_mse"])
def test_first_and_last_layer_have_8_bits(bits, name):
    (file,) = [file for file in RECIPES if file.stem == name.format(bits, bits)]
    plans = list(load_recipe(file).plans(build_model("resnet20", 10)).values())
    found = [(plan.forward.input.grid.bits, plan.forward.weight.grid.bits) for plan in plans]
    assert found == [(8, 8), *[(bits, bits)] * 18, (8, 8)]


def test_a_rule_that_matches_nothing_names_its_line(tmp_path, tiny):
    file = _write(tmp_path, "rules:\n  - skip: true\n\n  - match: {name: haed}\n    skip: true\n")
    with pytest.raises(LowbitError) as error:
        load_recipe(file).plans(tiny)
    assert str(error.value) == (
        f'{file}:4: rule 2: it has no effect: no layer is named "haed", did you mean "head"?'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rules:\n- forward:\n    input: {grd: int8}",
            "3: rules.0.forward.input.grd: unknown key, did you mean",
        ),
        ("rules:\n- forward:\n    input: {grid: int88}", "3: rules.0.forward.input.grid: unknown grid"),
        (
            "rules:\n- forward:\n    weight:\n      scaling: learnd",
            '4: rules.0.forward.weight.scaling: unknown scaling "learnd": did you mean "learned"?',
        ),
        (
            "rules:\n- skip: true\n- match: {index: first}\n  skip: true",
            "3: rules.1.match.index: expected a wh",
        ),
        ("rule:\n- skip: true", '1: rule: unknown key, did you mean "rules"?'),
        ("calibration: {steps: 5}", "rules: missing"),
        ("rules: []", "1: rules: too few entries"),
        ("rules: {skip: true}", "1: rules: expected a list"),
        ("rules:\n- skip\n", "2: rules.0: expected a section"),
        (
            "rules:\n- skip: true\npact:\n  initial: dta",
            "4: pact.initial: expected `data` or a number above 0",
        ),
        ("rules:\n- skip: true\nbatch_norm: {fold: trainig}", 'did you mean "training"?'),
        (
            "weight_bits: 8\nactivation_bit: 8",
            '2: activation_bit: unknown key, did you mean "activation_bits"?',
        ),
        ("weight_bit: 8", '1: weight_bit: unknown key, did you mean "weight_bits"?'),
        (
            "weight_bits: 17",
            "1: weight_bits: lowbit has grids of 2 to 8 bits (PaddleSlim takes 1 to 16), got 17",
        ),
        ("rules:\n- skip: true\n- skip: true\nrules: 3", "stands here for the second time"),
        ("rules: [", "not valid YAML"),
        ("- skip: true", "expected a recipe"),
        ("", "expected a recipe"),
        ("just words", "expected a recipe"),
    ],
)
def test_mistakes_have_a_place_and_the_nearest_word(tmp_path, text, message):
    file = _write(tmp_path, text)
    with pytest.raises(LowbitError) as error:
        load_recipe(file)
    assert str(error.value).startswith(str(file))
    assert message in str(error.value)


def test_mistakes_in_different_places_are_listed_together(tmp_path):
    file = _write(tmp_path, "rules:\n- forward:\n    input: {grid: int44}\n    weight: {clip: PACT}\n")
    with pytest.raises(LowbitError) as error:
        load_recipe(file)
    first, second = str(error.value).splitlines()
    assert first.startswith(f"{file}:3: ") and second.startswith(f"{file}:4: ")


def test_no_file(tmp_path):
    with pytest.raises(LowbitError, match=r"no recipe file .*; `lowbit recipes` lists those of lowbit$"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(LowbitError, match=r'no recipe file .*qat_w4a5\.yaml; did you mean "qat_w4a4"\?$'):
        load_recipe(tmp_path / "qat_w4a5.yaml")
    with pytest.raises(LowbitError, match="cannot read"):
        load_recipe(tmp_path)


def test_a_quant_config_as_a_file(tmp_path, tiny):
    file = _write(tmp_path, "weight_bits: 4\nactivation_preprocess_type: PACT\n")
    plan = load_recipe(file).plans(tiny)["conv"]
    assert plan.forward.weight == TensorSpec(grid="int4-narrow", granularity="N")
    assert plan.forward.input == TensorSpec(grid="int8-narrow", scaling="moving_average", clip="pact")


def test_from_values_in_python(tiny):
    recipe = make_recipe({"rules": [{"forward": {"weight": {"grid": "int8"}}}]})
    assert str(recipe.plans(tiny)["head"].forward.weight) == "int8 per-tensor"
    with pytest.raises(LowbitError, match=r'^recipe: rules\.0\.skipp: unknown key, did you mean "skip"\?$'):
        make_recipe({"rules": [{"skipp": True}]})
    with pytest.raises(LowbitError, match=r"^my config: weight_bits: "):
        make_recipe({"weight_bits": 0}, origin="my config")


@pytest.mark.parametrize("values", [3, "x", ["abc"], None])
def test_values_that_are_no_dictionary_are_an_error(values):
    with pytest.raises(LowbitError, match="expected a recipe, a dictionary"):
        make_recipe(values)


def test_dialects_are_told_apart_by_their_keys():
    seen: set[str] = set()
    for dialect in DIALECTS:
        assert dialect.keys and not dialect.keys & seen
        seen |= dialect.keys


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "grid": st.sampled_from(["int4", "uint8", "int8-narrow", "bf16", "full"]),
        "granularity": st.sampled_from(["per-tensor", "NHW", "CN"]),
        "observer": st.sampled_from(["mse", "mse(3)", "percentile(99.97)"]),
        "scaling": st.sampled_from(["dynamic", "moving_average(0.1)", "window(3)"]),
        "rounding": st.sampled_from(["nearest", "stochastic"]),
        "clip": st.sampled_from(["none", "pact"]),
        "sign": st.sampled_from(["fixed", "auto"]),
    },
).filter(bool)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | st.lists(NAMES, min_size=1, max_size=2),
        "regex": st.sampled_from([".*", r"layer\d+\.conv[12]"]),
        "type": st.sampled_from(["Conv2D", ["Conv2D", "Linear"]]),
        "index": st.integers(-5, 5),
    },
)
RULES = st.fixed_dictionaries(
    {"match": MATCHES, "forward": st.fixed_dictionaries({"input": SETTINGS}, optional={"weight": SETTINGS})},
    optional={"grad_input": st.fixed_dictionaries({"grad_output": SETTINGS})},
) | st.just({"skip": True})
VALUES = st.fixed_dictionaries(
    {"rules": st.lists(RULES, min_size=1, max_size=3)},
    optional={
        "calibration": st.fixed_dictionaries({"steps": st.integers(0, 99)}),
        "batch_norm": st.sampled_from([{"fold": "training"}, {"freeze_after": 100}]),
        "pact": st.sampled_from([{"initial": 100}, {"initial": "data", "learning_rate": "1e3"}]),
    },
)


@given(VALUES)
def test_what_is_written_is_read_back(values):
    recipe = make_recipe(values)
    text = dump_recipe(recipe)
    assert make_recipe(yaml.safe_load(text)) == recipe
    assert dump_recipe(make_recipe(yaml.safe_load(text))) == text


def test_what_is_written_is_complete_and_says_no_more_of_rules_than_they_said():
    written = yaml.safe_load(dump_recipe(Recipe(rules=[{"forward": {"weight": {"grid": "int8"}}}])))
    assert written == {
        "rules": [{"forward": {"weight": {"grid": "int8"}}}],
        "calibration": {"steps": 0, "correct_bias": False},
        "batch_norm": {"fold": "export", "freeze_after": None},
        "pact": {"initial": "data", "learning_rate": 1.0, "weight_decay": 0.0001},
        "matmul": None,
        "reconstruction": None,
    }


def test_rules_remember_their_places():
    values = {"rules": [{"skip": True}, {"skip": True}]}
    recipe = read_rules(values, {("rules", 0): "a.yaml:2", ("rules", 1): "a.yaml:3"}, "a.yaml")
    assert [rule.place for rule in recipe.rules] == ["a.yaml:2", "a.yaml:3"]


@pytest.mark.parametrize(
    "source",
    [
        "qat_w8a8",
        Path("qat_w8a8"),
        "qat_w8a8.yaml",
        "recipes/qat_w8a8.yaml",
        "qt_config/qat_w8a8.yaml",
        "./ppcls/qt_config/qat_w8a8.yaml",
    ],
)
def test_by_name_from_any_folder(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    assert load_recipe(source) == load_recipe(RECIPES_FOLDER / "qat_w8a8.yaml")


def test_a_file_wins_only_where_a_path_is_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bundled = load_recipe("qat_w8a8")
    for name in ("qat_w8a8", "qat_w8a8.yaml", "mine"):
        Path(name).write_text("weight_bits: 3\n")
    assert load_recipe("qat_w8a8") == bundled
    assert load_recipe("./qat_w8a8") == load_recipe("qat_w8a8.yaml") == make_recipe({"weight_bits": 3})
    with pytest.raises(LowbitError, match='unknown recipe "mine": for the file of that name write /'):
        load_recipe("mine")


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(LowbitError, match=r'^unknown recipe "qat_w4a5": did you mean "qat_w4a4"\?$'):
        load_recipe("qat_w4a5")
    with pytest.raises(LowbitError, match=r'^unknown recipe "zzz": `lowbit recipes` lists those of lowbit$'):
        load_recipe("zzz")
    with pytest.raises(LowbitError, match=r"no recipe file /elsewhere/recipes/qat_w8a8\.yaml"):
        load_recipe("/elsewhere/recipes/qat_w8a8.yaml")


def test_a_recipe_and_values_are_taken_as_they_are():
    recipe = make_recipe({"weight_bits": 4})
    assert load_recipe(recipe) is recipe
    assert load_recipe({"weight_bits": 4}) == recipe


def test_the_list_of_recipes():
    found = list_recipes()
    assert [recipe.name for recipe in found] == [file.stem for file in RECIPES]
    for recipe in found:
        loaded = load_recipe(recipe.name)
        assert loaded.quantizes_gradients == (recipe.kind == "low-precision training")
        assert recipe.description and recipe.reached and "\n" not in recipe.description + recipe.reached
        assert recipe.to_dict()["kind"] in ("post-training", "QAT", "low-precision training")


def test_a_recipe_that_was_not_measured_is_listed(tmp_path, monkeypatch):
    (tmp_path / "qat_mine.yaml").write_text("description: mine\nweight_bits: 4\n")
    monkeypatch.setattr("lowbit.recipe.load.RECIPES", tmp_path)
    assert [(recipe.name, recipe.reached) for recipe in list_recipes()] == [("qat_mine", "not measured yet")]


def test_what_is_said_about_a_recipe_does_not_change_it():
    assert make_recipe({"weight_bits": 4, "description": "mine"}) == make_recipe({"weight_bits": 4})
    with pytest.raises(LowbitError, match=r"^recipe: description: expected a text, got 3$"):
        make_recipe({"weight_bits": 4, "description": 3})


def test_what_is_no_recipe():
    with pytest.raises(LowbitError, match=r"^a recipe is a name, a path, a dict or a lowbit.Recipe, got int"):
        load_recipe(3)
