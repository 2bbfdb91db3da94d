from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from lowbit.config.transform_ops import CropImage, DecodeImage, NormalizeImage, ResizeImage, ToCHWImage
from lowbit.deploy.model_files import describe_inference, read_inference_yml, write_inference_yml
from lowbit.errors import LowbitError

OPS = [
    DecodeImage(),
    ResizeImage(resize_short=256),
    CropImage(size=224),
    NormalizeImage(scale="1.0/255.0"),
    ToCHWImage(),
]


# Class names come from folders: anything but NUL, and lone surrogates, which are not text.
@example(["a\x85b", "猫"])
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1, max_size=5
    )
)
def test_round_trip_with_any_class_names(classes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inference.yml"
        description = describe_inference(
            model_name="m", image_shape=(3, 224, 224), transform_ops=OPS, classes=classes, sha256={"a": "b"}
        )
        write_inference_yml(path, description)
        back = read_inference_yml(path)
    assert back == description
    assert back.ops == OPS and back.classes == classes and back.topk == 5


def test_the_layout_that_other_tools_read(tmp_path):
    path = tmp_path / "inference.yml"
    write_inference_yml(
        path,
        describe_inference(
            model_name="ResNet18", image_shape=(3, 8, 8), transform_ops=OPS, classes=["猫", "no"], sha256={}
        ),
    )
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert values["Global"]["model_name"] == "ResNet18"
    assert values["PreProcess"]["transform_ops"][2] == {"CropImage": {"size": 224}}
    assert values["PostProcess"] == {"Topk": {"topk": 5, "label_list": ["猫", "no"]}}


def test_a_file_of_another_tool(tmp_path):
    path = tmp_path / "inference.yml"
    path.write_text(
        "Global:\n  model_name: PP\nHpi:\n  backend: paddle\nPreProcess:\n  transform_ops:\n"
        "  - ResizeImage: {resize_short: 256}\n  - NormalizeImage: {scale: 1.0/255.0, order: ''}\n"
        "  - ToCHWImage: null\nPostProcess:\n  Topk: {topk: 3, label_list: [0, 1, two]}\n"
    )
    description = read_inference_yml(path)
    assert description.classes == ["0", "1", "two"] and description.topk == 3
    assert description.Global.image_shape is None
    assert [type(op).__name__ for op in description.ops] == ["ResizeImage", "NormalizeImage", "ToCHWImage"]


GOOD = "Global: {model_name: m}\nPreProcess: {transform_ops: [CropImage: {size: 8}]}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("CropImage", "CropImag"), r'inference\.yml:2: .*did you mean "CropImage"'),
        (GOOD.replace("model_name", "modelname"), r'inference\.yml:1: .*did you mean "model_name"'),
        (GOOD + "PostProces: {}\n", r'inference\.yml:3: .*did you mean "PostProcess"'),
        (GOOD + "PostProcess: {Topk: {topk: 0}}\n", r"inference\.yml:3: PostProcess\.Topk\.topk: .*got 0"),
        ("Global: {model_name: m}\n", "PreProcess"),
        ("- a\n", "expected the sections"),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_mistakes_are_named_with_their_place(text, message, tmp_path):
    path = tmp_path / "inference.yml"
    path.write_text(text)
    with pytest.raises(LowbitError, match=message):
        read_inference_yml(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(LowbitError, match=r"no .*inference\.yml: how images are prepared .* is not known"):
        read_inference_yml(tmp_path / "inference.yml")
