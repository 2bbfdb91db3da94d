from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import paddle
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from lowbit.config.transform_ops import CropImage, DecodeImage, NormalizeImage, ResizeImage, ToCHWImage
from lowbit.deploy.model_files import (
    ModelFiles,
    check_files,
    describe_inference,
    find_model_files,
    is_complete,
    read_inference_yml,
    sha256,
    stored_tensors,
    write_inference_yml,
)
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
    with pytest.raises(LowbitError, match=r"no inference\.pdiparams next to it"):
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


@pytest.fixture(scope="module")
def content(exported) -> bytes:
    return exported.params.read_bytes()


def test_what_paddle_wrote_is_complete(exported):
    assert is_complete(exported.params)


def test_other_element_types_are_understood(tmp_path):
    class Mixed(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            for name in ("int8", "int64", "float64", "bool", "float16"):
                self.register_buffer(f"of_{name}", paddle.zeros([3, 5]).astype(name))

        def forward(self, x):
            return x + sum(buffer.astype("float32").sum() for buffer in self.buffers())

    spec = paddle.static.InputSpec([None, 2], "float32", "x")
    paddle.jit.save(Mixed(), str(tmp_path / "mixed"), input_spec=[spec])
    assert is_complete(tmp_path / "mixed.pdiparams")
    sizes = sorted((tensor.size, tensor.is_8_bit) for tensor in stored_tensors(tmp_path / "mixed.pdiparams"))
    assert sizes == [(15, False), (15, True), (30, False), (120, False), (120, False)]


def test_every_cut_and_every_addition_is_noticed(content, tmp_path):
    path = tmp_path / "cut.pdiparams"
    boundaries = 0
    for length in range(len(content)):
        path.write_bytes(content[:length])
        boundaries += is_complete(path)
    assert boundaries == 7  # only a cut between two of the eight tensors looks whole; Paddle notices that one
    path.write_bytes(content + b"\0")
    assert not is_complete(path)
