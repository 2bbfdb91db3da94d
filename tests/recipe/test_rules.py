from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lowbit.recipe import Match, ModelLayer, Rule

NAMES = ["conv1", "layer1.0.conv1", "layer1.0.conv2", "layer10.0.conv1", "up", "head.fc"]
TYPES = ["Conv2D", "Conv2D", "Conv2D", "Conv2D", "Conv2DTranspose", "Linear"]
LAYERS = [
    ModelLayer(index=index, names=(name,), type=kind, shape=(1,))
    for index, (name, kind) in enumerate(zip(NAMES, TYPES, strict=True))
]


def _matched(**match) -> list[str]:
    return [layer.name for layer in LAYERS if Match(**match).matches(layer, len(LAYERS))]


@pytest.mark.parametrize(
    ("match", "names"),
    [
        ({}, NAMES),
        ({"name": "conv1"}, ["conv1"]),
        ({"name": "layer1"}, ["layer1.0.conv1", "layer1.0.conv2"]),
        ({"name": "layer1.0"}, ["layer1.0.conv1", "layer1.0.conv2"]),
        ({"name": "*conv1"}, ["conv1", "layer1.0.conv1", "layer10.0.conv1"]),
        ({"name": "layer1*"}, ["layer1.0.conv1", "layer1.0.conv2", "layer10.0.conv1"]),
        ({"name": "*.?.conv[2-9]"}, ["layer1.0.conv2"]),
        ({"name": ["up", "head"]}, ["up", "head.fc"]),
        ({"regex": r"layer\d\..*"}, ["layer1.0.conv1", "layer1.0.conv2"]),
        ({"regex": "conv1"}, ["conv1"]),
        ({"regex": ["conv1", ".*fc"]}, ["conv1", "head.fc"]),
        ({"type": "Linear"}, ["head.fc"]),
        ({"type": ["Linear", "Conv2DTranspose"]}, ["up", "head.fc"]),
        ({"index": 0}, ["conv1"]),
        ({"index": [0, -1]}, ["conv1", "head.fc"]),
        ({"index": -6}, ["conv1"]),
        ({"index": [6, -7, 99]}, []),
        ({"type": "Conv2D", "name": "*conv1", "index": [1, 2]}, ["layer1.0.conv1"]),
    ],
)
def test_matching(match, names):
    assert _matched(**match) == names


def test_a_shared_layer_answers_to_all_its_names():
    layer = ModelLayer(index=0, names=("a", "b.c"), type="Linear", shape=(1,))
    for match in ({"name": "a"}, {"name": "b"}, {"regex": "b.c"}):
        assert Match(**match).matches(layer, 1)


@pytest.mark.parametrize(
    ("match", "message"),
    [
        ({"name": "layer2"}, 'no layer is named "layer2", did you mean "layer1"?'),
        ({"name": "fc"}, 'no layer is named "fc"; for names that contain it write "*fc*"'),
        ({"name": "laeyr1.0.conv1"}, 'did you mean "layer1.0.conv1"?'),
        ({"name": "zzz"}, "its layers are conv1, layer1.0.conv1"),
        ({"name": ["up", "donw"]}, 'no layer is named "donw"'),
        ({"regex": "zzz"}, 'no layer matches the regex "zzz"; its layers are conv1'),
        ({"regex": "fc"}, 'it must match the whole name, as ".*fc.*" would'),
        ({"index": 6}, "there is no layer 6: the model's layers are 0 to 5 (or -1 to -6)"),
        ({"index": [0, -7]}, "there is no layer -7"),
        ({"type": "Linear", "index": 0}, "no layer has all of: type Linear, index 0"),
    ],
)
def test_why_unused(match, message):
    assert message in Match(**match).why_unused(LAYERS)


def test_a_type_that_the_model_lacks():
    convolutions = LAYERS[:4]
    assert Match(type="Linear").why_unused(convolutions) == "no layer has type Linear"
    assert Match(type=["Conv2D", "Linear"]).why_unused(convolutions) is None


def test_many_names_are_cut_short():
    many = [ModelLayer(index=i, names=(f"block{i}",), type="Linear", shape=(1,)) for i in range(50)]
    assert Match(name="zzz").why_unused(many).endswith("block4, … (50 in all)")


@given(st.text(min_size=1, max_size=12))
def test_any_text_is_a_name_and_gives_an_answer(name):
    match = Match(name=name)
    unused = match.why_unused(LAYERS)
    assert (unused is None) == any(match.matches(layer, len(LAYERS)) for layer in LAYERS)


@pytest.mark.parametrize(
    ("match", "message"),
    [
        ({"regex": "("}, "not a regular expression: missing )"),
        ({"type": "conv2d"}, 'unknown layer type "conv2d", did you mean "Conv2D"?'),
        ({"type": "LSTM"}, "valid: Conv2D, Conv2DTranspose, Linear"),
        ({"index": True}, "valid integer"),
        ({"index": "0"}, "valid integer"),
        ({"index": []}, "at least 1"),
        ({"name": ""}, "at least 1 character"),
        ({"name": 3}, "valid string"),
        ({"nmae": "x"}, 'did you mean "name"'),
    ],
)
def test_a_match_that_is_none(match, message):
    with pytest.raises(ValidationError) as error:
        Match(**match)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "sets nothing; give forward, grad_input, grad_weight or skip: true"),
        ({"match": {"index": 0}}, "sets nothing"),
        ({"skip": False}, "should be True"),
        ({"skip": True, "forward": {"input": {"grid": "int8"}}}, "nothing else can be set"),
        ({"forward": {}}, "empty; give at least one of input, weight"),
        ({"forward": {"input": {}}}, "empty; give at least one of grid"),
        ({"forward": {"grad_output": {"grid": "int8"}}}, "unknown key"),
        ({"forward": {"weights": {"grid": "int8"}}}, 'did you mean "weight"'),
        ({"forward": {"weight": {"bits": 8}}}, "unknown key"),
    ],
)
def test_a_rule_that_is_none(rule, message):
    with pytest.raises(ValidationError) as error:
        Rule(**rule)
    assert message in str(error.value)


def test_the_place_is_no_part_of_what_a_rule_says():
    rule = Rule(skip=True)
    placed = rule.at("recipe.yaml:7")
    assert (rule.place, placed.place) == ("", "recipe.yaml:7")
    assert rule == placed != Rule(match={"index": 0}, skip=True)
