"""The dialect of low-precision training: blocks, filters and managers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn
from pydantic import ValidationError

from lowbit.errors import LowbitError
from lowbit.numerics import parse_observer
from lowbit.recipe import FULL_SPEC, TensorSpec, dump_recipe, load_recipe, make_recipe
from lowbit.recipe.dialects.low_precision import OPERANDS, BlockKeys, Filter, LowPrecisionConfig, OperandBlock
from lowbit.recipe.spec import SpecSettings


def _words(settings: dict) -> dict[str, str]:
    return {key: str(value) for key, value in settings.items()}


def test_every_key_of_a_spec_can_be_set():
    keys = set(SpecSettings.model_fields) - {"grid", "rounding"} | {"qtype", "stochastic"}
    assert set(BlockKeys.model_fields) == keys


def test_words_are_those_of_a_spec():
    keys = BlockKeys(qtype="log4", granularity="CN", rotation="hadamard(16)", samples=2, stochastic=False)
    assert _words(keys.settings()) == {
        "grid": "log4",
        "granularity": "NC",
        "rotation": "hadamard",
        "samples": "2",
        "rounding": "nearest",
    }
    assert BlockKeys().settings() == {}


@pytest.mark.parametrize("bits", range(2, 9))
def test_qtypes(bits):
    assert _words(OperandBlock(qtype=f"int{bits}").settings()) == {"grid": f"int{bits}"}
    with pytest.raises(ValidationError, match=f'write "int{bits}": where an input is never negative'):
        OperandBlock(qtype=f"uint{bits}")


def test_blocks_of_inputs_are_unsigned_where_they_are_never_negative():
    assert OperandBlock(qtype="int4").base_settings(is_input=True)["sign"] == "auto"
    assert "sign" not in OperandBlock(qtype="int4").base_settings(is_input=False)
    assert OperandBlock(qtype="int4", sign="fixed").base_settings(is_input=True)["sign"] == "fixed"


@pytest.mark.parametrize(
    ("scaling", "observer"),
    [("dynamic", "mse"), ("moving_average", "mse"), ("fixed", "mse(50)"), ("learned", "mse(50)")],
)
def test_mse_takes_50_turns_when_it_calibrates_and_one_in_every_call(scaling, observer):
    for word, expected in (("mse", observer), ("mse(3)", "mse(3)")):
        settings = OperandBlock(qtype="int4", scaling=scaling, observer=word).base_settings(is_input=False)
        assert TensorSpec(**settings).observer == parse_observer(expected)


def test_a_filter_sets_what_it_says():
    assert _words(Filter(id=0, observer="minmax").settings()) == {"observer": "minmax"}
    assert _words(Filter(id=1, scaling="fixed").settings()) == {"scaling": "fixed"}


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"id": 3}, {"index": 3}),
        ({"name": "fc"}, {"name": "*fc*"}),
        ({"name": "a[0]"}, {"name": "*a[[]0]*"}),
        ({"id": -1, "name": "fc"}, {"index": -1, "name": "*fc*"}),
    ],
)
def test_filters_in_lowbits_words(values, match):
    assert Filter(**values, qtype="full").match() == match


def test_no_filters():
    assert OperandBlock(qtype="int4", filters=None).filters == OperandBlock(qtype="int4").filters == []


QT, QAT = "qt_quantization_manager", "qat_quantization_manager"
FULL = {"qtype": "full"}
SHORT = {"quantization_manager": QT, "weight_config": FULL, "input_config": FULL, "grad_config": FULL}
QAT_FULL = {
    "quantization_manager": QAT,
    "weight_config": FULL,
    "activation_config": FULL,
    "calibration_config": {"steps": 50},
}
MODEL = nn.Sequential(
    *(
        ("conv1", nn.Conv2D(3, 4, 3)),
        ("conv10", nn.Conv2D(4, 4, 3)),
        ("fc1", nn.Linear(4, 4)),
        ("fc2", nn.Linear(4, 4)),
    )
)
NAMES = ["conv1", "conv10", "fc1", "fc2"]
REFERENCE = """\
quantization_manager: qt_quantization_manager
weight_forward_config:
  qtype: "int4"
  granularity: N
  scaling: dynamic
  observer: mse
  stochastic: False
  filters: &first [{id: 0, qtype: "full"}]
weight_backward_config:
  {qtype: int4, granularity: C, scaling: dynamic, observer: mse, stochastic: False, filters: *first}
input_config:
  {qtype: int4, granularity: N, scaling: dynamic, observer: mse, stochastic: False, filters: *first}
grad_input_config:
  {qtype: int4, granularity: NHW, scaling: dynamic, observer: minmax, stochastic: True, filters: *first}
grad_weight_config:
  {qtype: int4, granularity: NC, scaling: dynamic, observer: minmax, stochastic: True, filters: *first}
"""


def _write(path: Path, text: str | dict) -> Path:
    """A file of the text, or of the values, a line for every key."""
    if not isinstance(text, str):
        text = "\n".join(f"{key}: {json.dumps(value)}" for key, value in text.items())
    file = path / "recipe.yaml"
    file.write_text(text, "utf-8")
    return file


def _specs(values: dict, layer: str = "conv1") -> dict[str, TensorSpec]:
    """`product.operand` with its spec."""
    plan = make_recipe(values).plans(MODEL)[layer]
    return {f"{p.name}.{operand}": getattr(p, operand) for p in plan.products() for operand in vars(p)}


def test_the_reference_recipe(tmp_path):
    recipe = load_recipe(_write(tmp_path, REFERENCE))
    plans = recipe.plans(MODEL)
    assert plans["conv1"].is_full
    for name in NAMES[1:]:
        plan = plans[name]
        input_ = TensorSpec(grid="int4", granularity="N", observer="mse", sign="auto")
        assert plan.forward.weight == TensorSpec(grid="int4", granularity="N", observer="mse")
        assert plan.grad_input.weight == TensorSpec(grid="int4", granularity="C", observer="mse")
        assert plan.forward.input == plan.grad_weight.input == input_
        assert str(plan.grad_input.grad_output) == "int4 NHW stochastic"
        assert str(plan.grad_weight.grad_output) == "int4 NC stochastic"
        assert set(plan.runs_in_integers("Conv2D").values()) == {None}


@pytest.mark.parametrize("key", OPERANDS[QT])
def test_what_each_block_is_about(key):
    kind = key.split("_")[0]
    short, *longer = (block for block in OPERANDS[QT] if block.startswith(kind))
    values = dict(SHORT)
    if key != short:
        del values[short]
        values |= dict.fromkeys(longer, FULL)
    values[key] = {"qtype": "int3", "granularity": "C"}
    quantized = {name for name, spec in _specs(values).items() if spec != FULL_SPEC}
    assert quantized == set(OPERANDS[QT][key])


@pytest.mark.parametrize("key", OPERANDS[QAT])
def test_blocks_of_qat(key):
    specs = _specs(QAT_FULL | {key: {"qtype": "int4", "scaling": "learned", "observer": "mse"}})
    expected = TensorSpec(grid="int4", scaling="learned", observer="mse(50)")
    assert specs.pop(OPERANDS[QAT][key][0]).as_words() | {"sign": "fixed"} == expected.as_words()
    assert list(specs.values()) == [FULL_SPEC]
    recipe = make_recipe(QAT_FULL)
    assert recipe.calibration.steps == 50 and recipe.plans(MODEL)["fc1"].is_straight_through


def test_inputs_are_unsigned_where_they_are_never_negative():
    qat = _specs(QAT_FULL | {"activation_config": {"qtype": "int4"}})
    qt = _specs(SHORT | {"input_config": {"qtype": "int4"}})
    signs = [qat["forward.input"].sign, qt["forward.input"].sign, qt["grad_weight.input"].sign]
    assert signs == ["auto"] * 3


def test_keys_of_lowbits_own_and_log_scale_gradients():
    grad = {"qtype": "log4", "stochastic": True, "samples": 2, "scaling": "hindsight(0.5)"}
    specs = _specs(SHORT | {"grad_config": grad})
    expected = TensorSpec(grid="log4", rounding="stochastic", samples=2, scaling="hindsight(0.5)")
    assert specs["grad_input.grad_output"] == specs["grad_weight.grad_output"] == expected
    rotated = SHORT | {"grad_config": {"qtype": "int4", "granularity": "NHW", "rotation": "hadamard(32)"}}
    assert str(_specs(rotated)["grad_weight.grad_output"]) == "int4 NHW hadamard(32)"


@pytest.mark.parametrize(
    ("filters", "grids"),
    [
        ([{"id": 0, "qtype": "full"}], ["full", "int4", "int4", "int4"]),
        ([{"id": -1, "qtype": "full"}], ["int4", "int4", "int4", "full"]),
        ([{"name": "fc", "qtype": "int8"}], ["int4", "int4", "int8", "int8"]),
        ([{"name": "conv1", "qtype": "int8"}], ["int8", "int8", "int4", "int4"]),
        ([{"name": "conv1", "id": 1, "qtype": "int8"}], ["int4", "int8", "int4", "int4"]),
        ([{"name": "fc", "qtype": "full"}, {"id": 2, "qtype": "int2"}], ["int4", "int4", "int2", "full"]),
        ([{"id": 2, "qtype": "int2"}, {"name": "fc", "qtype": "full"}], ["int4", "int4", "full", "full"]),
    ],
)
def test_filters(filters, grids):
    values = SHORT | {"grad_config": {"qtype": "int4", "granularity": "NC", "filters": filters}}
    for name, grid in zip(NAMES, grids, strict=True):
        specs = _specs(values, name)
        expected = FULL_SPEC if grid == "full" else TensorSpec(grid=grid, granularity="NC")
        assert specs["grad_input.grad_output"] == specs["grad_weight.grad_output"] == expected


def test_a_filter_is_about_its_block_alone():
    int4 = {"qtype": "int4"}
    values = SHORT | {
        "weight_config": int4 | {"filters": [{"name": "fc", "qtype": "full"}]},
        "input_config": int4,
    }
    specs = _specs(values, "fc1")
    assert specs["forward.weight"] == specs["grad_input.weight"] == FULL_SPEC
    assert str(specs["forward.input"]) == "int4/uint4 per-tensor"


KEYS = {
    "qtype": st.sampled_from(["int2", "int8", "bf16", "full"]),
    "granularity": st.sampled_from(["per-tensor", "N", "NC", "HWN"]),
    "observer": st.sampled_from(["minmax", "mse", "percentile(99)"]),
    "stochastic": st.booleans(),
}
SETTINGS = st.fixed_dictionaries({}, optional=KEYS).filter(bool)
FILTERS = st.lists(
    st.tuples(
        st.sampled_from([{"id": 1}, {"id": 3}, {"name": "conv"}, {"name": "fc"}, {"name": "1"}]),
        SETTINGS,
    ),
    max_size=5,
)


@given(SETTINGS.filter(lambda settings: "qtype" in settings), FILTERS)
def test_later_filters_override_earlier_ones_key_by_key(base, filters):
    block = {**base, "filters": [which | said for which, said in filters]}
    recipe = make_recipe(SHORT | {"weight_config": block})
    again = make_recipe(yaml.safe_load(dump_recipe(recipe)))  # what a run keeps means the same
    for index, name in enumerate(NAMES):
        keys = dict(base)
        for which, said in filters:
            if which.get("id", index) == index and which.get("name", "") in name:
                keys |= said
        rounding = "stochastic" if keys.pop("stochastic", False) else "nearest"
        grid = keys.pop("qtype")
        keys = {"grid": grid} if grid in ("full", "bf16") else {"grid": grid, "rounding": rounding, **keys}
        plans = recipe.plans(MODEL)
        assert plans[name].forward.weight == plans[name].grad_input.weight == TensorSpec(**keys)
        assert again.plans(MODEL)[name] == plans[name]


MISTAKES = [
    ("quantization_manager: qt", "1: quantization_manager: must be 'qt_quantization_manager' or 'qat_"),
    ("quantization_manger: x", '1: quantization_manger: unknown key, did you mean "quantization_manager"?'),
    ("weight_config: {qtype: int4}", "quantization_manager: missing"),
    (
        "weight_config: {qtype: int9}",
        '2: weight_config.qtype: unknown grid "int9": integer grids have 2 to 8',
    ),
    ("weight_config: {qtype: int}", '2: weight_config.qtype: unknown grid "int": did you mean "int'),
    (
        "weight_config: {qtype: uint4}",
        '2: weight_config.qtype: write "int4": where an input is never negative',
    ),
    ("weight_config: {granularity: N}", "2: weight_config.qtype: missing"),
    (
        "weight_config: {qtype: int4, granularity: NX}",
        '2: weight_config.granularity: unknown granularity "NX"',
    ),
    ("weight_config: {qtype: int4, granularity: nc}", 'did you mean "NC"?'),
    ("weight_config: {qtype: int4, granularity: per_tensor}", 'did you mean "per-tensor"?'),
    (
        "weight_config: {qtype: int4, scaling: dynamik}",
        '2: weight_config.scaling: unknown scaling "dynamik": did',
    ),
    (
        "weight_config: {qtype: int4, observer: mae}",
        '2: weight_config.observer: unknown observer "mae": did you',
    ),
    (
        "weight_config: {qtype: int4, stochastic: maybe}",
        "2: weight_config.stochastic: expected true or false",
    ),
    (
        "weight_config: {qtype: int4, stocastic: 1}",
        '2: weight_config.stocastic: unknown key, did you mean "stoc',
    ),
    ("weight_config: {qtype: int4, grid: int4}", "2: weight_config.grid: unknown key"),
    ("weight_config: [int4]", "2: weight_config: expected a section"),
    ("weight_confg: {qtype: int4}", '2: weight_confg: unknown key, did you mean "weight_config"?'),
    ("grad_config: {qtype: int4, filters: {id: 0}}", "2: grad_config.filters: expected a list"),
    (
        "grad_config:\n  qtype: int4\n  filters:\n  - {qtype: full}",
        "5: grad_config.filters.0: give id or name",
    ),
    (
        "grad_config: {qtype: int4, filters: [{id: 0}]}",
        "2: grad_config.filters.0: sets nothing; give at least",
    ),
    ("grad_config: {qtype: int4, filters: [{id: x, qtype: full}]}", "filters.0.id: expected a whole number"),
    ("grad_config: {qtype: int4, filters: [{nam: fc, qtype: full}]}", 'did you mean "name"?'),
    ("grad_config: {qtype: int4, filters: [{id: 0, qtype: ful}]}", 'did you mean "full"?'),
    ("grad_config: {qtype: log4, observer: mse}", "2: grad_config: the grid log4 spans all magnitudes"),
    ("calibration_config: {steps: 0}", "2: calibration_config.steps: must be greater than or equal to 1"),
    ("calibration_config: {step: 5}", '2: calibration_config.step: unknown key, did you mean "steps"?'),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_have_a_place_and_the_nearest_word(tmp_path, text, message):
    first = "" if "manager: missing" in message or "manger" in text else f"quantization_manager: {QT}"
    others = [f"{kind}_config: {{qtype: full}}" for kind in ("weight", "input", "grad") if kind not in text]
    lines = [text] if text.startswith("quantization") else [first, text]
    file = _write(tmp_path, "\n".join([*lines, *others]))
    with pytest.raises(LowbitError) as error:
        load_recipe(file)
    assert str(error.value).startswith(f"{file}:"), error.value
    assert message in str(error.value)


def _refusal(blocks: dict[str, object]) -> str:
    """The message about a recipe of these blocks, without those that are None."""
    with pytest.raises(LowbitError) as error:
        make_recipe({key: value for key, value in blocks.items() if value}, origin="r")
    assert str(error.value).startswith("r: ")
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weight_forward_config": FULL},
            "weight_config: stands for weight_forward_config and weight_backward",
        ),
        ({"grad_weight_config": FULL}, "give it alone, or those two (here is grad_weight_config)"),
        (
            {"weight_config": None},
            "weight_config: missing (or weight_forward_config and weight_backward_config)",
        ),
        (
            {"input_config": None, "input_forward_config": FULL},
            "input_backward_config: missing, while input_f",
        ),
        (
            {"grad_config": None, "grad_weight_config": FULL},
            "grad_input_config: missing, while grad_weight_c",
        ),
        (
            {"activation_config": FULL},
            "activation_config: belongs to qat_quantization_manager; here it is input",
        ),
        (
            {"input_config": {"qtype": "int4", "scaling": "fixed"}},
            "calibration_config: missing: input_config has scaling fixed, which calibration finds out; add",
        ),
        (
            {"input_config": {"qtype": "int4", "scaling": "learned"}},
            "calibration_config: missing: input_config has s",
        ),
    ],
)
def test_which_blocks_low_precision_training_has(change, message):
    assert message in _refusal({**SHORT, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"grad_config": FULL},
            "grad_config: qat_quantization_manager quantizes no gradients; remove it, or use qt",
        ),
        ({"weight_forward_config": FULL}, "belongs to qt_quantization_manager; here it is weight_config"),
        ({"input_config": FULL}, "belongs to qt_quantization_manager; here it is activation_config"),
        ({"activation_config": None}, "activation_config: missing; `qtype: full` is full precision"),
        ({"weight_config": None}, "weight_config: missing; `qtype: full` is full precision"),
        (
            {"weight_config": {"qtype": "int4", "stochastic": True}},
            "weight_config.stochastic: is for qt_quantization",
        ),
        (
            {"weight_config": {"qtype": "int4", "filters": [{"id": 0, "stochastic": True}]}},
            "weight_config.filters.0.stochastic: is for",
        ),
        (
            {"calibration_config": None, "activation_config": {"qtype": "int4"}},
            "calibration_config: missing: activation_config has sign auto, which calibration finds out",
        ),
    ],
)
def test_which_blocks_qat_has(change, message):
    assert message in _refusal({**QAT_FULL, **change})


@pytest.mark.parametrize(
    ("filter_", "message"),
    [
        ({"name": "fcc"}, 'no layer has "fcc" in its name, did you mean "fc2"?'),
        ({"name": "head"}, 'no layer has "head" in its name; its layers are conv1, conv10, fc1, fc2'),
        ({"name": "conv*"}, 'no layer is named "*conv[*]*"'),
        ({"id": 4}, "there is no layer 4: the model's layers are 0 to 3 (or -1 to -4)"),
        ({"id": 0, "name": "fc"}, "no layer has all of: name *fc*, index 0"),
    ],
)
def test_filters_that_match_no_layer(tmp_path, filter_, message):
    filters = [{"id": 1, "qtype": "int8"}, {**filter_, "qtype": "int8"}]
    file = _write(tmp_path, SHORT | {"grad_config": {"qtype": "int4", "filters": filters}})
    with pytest.raises(LowbitError) as error:
        load_recipe(file).plans(MODEL)
    assert str(error.value).startswith(f"{file}:4: grad_config.filters.1: it has no effect: ")
    assert message in str(error.value)


def test_settings_that_do_not_go_together_name_their_blocks(tmp_path):
    values = SHORT | {
        "grad_config": {"qtype": "int4", "scaling": "learned", "filters": [{"id": 1, "qtype": "full"}]}
    }
    file = _write(tmp_path, values)
    with pytest.raises(LowbitError) as error:
        load_recipe(file).plans(MODEL)
    assert str(error.value).startswith(
        f'the plan of layer "conv1" (from {file}:4: grad_config): grad_input.grad_output: scaling learned'
    )


def test_all_blocks_are_named():
    blocks = set(LowPrecisionConfig.model_fields) - {"quantization_manager", "calibration_config"}
    assert blocks == {*OPERANDS[QT], *OPERANDS[QAT]}
