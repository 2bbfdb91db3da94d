from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import read_config
from tests.support.chains import CONFIGS, NAMES, changed_text, config_lines


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_is_recognised_by_content(name, tmp_path):
    expected = 51 if name in ("generic", "paddleclas") else 32
    assert read_config(CONFIGS / f"{name}.txt").layout == expected
    other = tmp_path / "train_infer_python.txt"
    other.write_text("\n".join((*config_lines(name), "====train_benchmark_params====", "batch_size:8")))
    assert read_config(other).layout == expected


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("norm", {13: "trianer:norm_train"}, 'line 13: expected trainer:.*did you mean "trainer"'),
        ("norm", {16: "====evel_params===="}, 'line 16: expected the title.*mean "eval_par'),
        ("norm", {8: None}, "line 13: expected trainer.*it is on line 12, so a line above it is missing"),
        ("norm", {8: "a:b\na:b"}, "line 13: expected trainer.*on line 14, so a line above it is too much"),
        ("generic", {40: "inferenec:x"}, 'line 40: expected inference:.*did you mean "inference"'),
        ("generic", {2: "modelname:x"}, 'line 2: expected model_name:.*did you mean "model_name"'),
        ("norm", {1: "hello"}, 'line 1: expected the title train_params, found "hello"'),
    ],
)
def test_a_wrong_line_is_named(change, name, lines, message):
    with pytest.raises(LowbitError, match=message):
        change(name, lines)


def test_a_config_of_another_test(tmp_path):
    file = tmp_path / "paddle2onnx.txt"
    file.write_text("====paddle2onnx_params====\nmodel_name:x\npython:python3\n")
    with pytest.raises(LowbitError, match=r"line 1: .* train_params, found paddle2onnx_params"):
        read_config(file)
    file.write_text("====train_params====\nmodel_name:x\npython:python3\n")
    with pytest.raises(LowbitError, match=r"line 13: expected trainer.*nowhere"):
        read_config(file)
    file.write_text("====train_params====\ntrainer:x\n")
    with pytest.raises(LowbitError, match=r"line 2: expected trainer.*found it on line 2"):
        read_config(file)


def test_missing_lines_at_the_end_are_absent(tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("\n".join(changed_text("norm", {}).splitlines()[:17]))
    config = read_config(file)
    assert config.evaluation.command.value == "train.py --test-only"
    assert config.inference.script.is_absent
    assert config.released.weights.is_absent


def test_null_in_the_place_of_a_landmark_is_absent(change):
    assert change("norm", {17: "null:null"}).evaluation.command.is_absent
    assert change("norm", {17: "##"}).evaluation.command.is_absent


PARTS = ("training", "evaluation", "export", "released", "inference")


def _fields(config):
    """Every field of a config, those of its trainers included."""
    parts = (config, *(getattr(config, name) for name in PARTS))
    fields = [field for part in parts for field in vars(part).values() if hasattr(field, "number")]
    return fields + [field for one in config.training.trainers for field in (one.train, one.export)]


def test_every_value_of_32_lines_is_read_from_its_line(change):
    config = change("pact")
    found = {field.number: (field.key, field.value) for field in _fields(config)}
    [trainer] = config.training.trainers
    assert found.pop(5) == ("--device", "gpu|gpu")
    for number, (key, value) in found.items():
        assert config.file.line(number).text == f"{key}:{value}"
    places = {2, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 17, 20, 21, 22, 24, 25, 27, 28, 29, 30, 31, 32}
    assert set(found) == places
    assert (trainer.name, trainer.quantized) == ("pact_train", True)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("use-gpu:True|False", "--device", "gpu|cpu"),
        ("use_gpu:null", "--device", "null"),
        ("--use-gpu:True|True", "--use-gpu", "True|True"),
        ("--device:gpu|cpu", "--device", "gpu|cpu"),
    ],
)
def test_line_5_becomes_an_option(change, line, key, value):
    field = change("norm", {5: line}).training.use_gpu
    assert (field.key, field.value, field.number) == (key, value, 5)


def test_every_value_of_51_lines_is_read_from_its_line(change):
    config = change("generic")
    fields = _fields(config)
    for field in fields:
        assert config.file.line(field.number).text == f"{field.key}:{field.value}"
    titles_separators_and_log = {1, 14, 22, 23, 26, 27, 49}
    assert {field.number for field in fields} == set(range(1, 52)) - titles_separators_and_log
    names = [one.name for one in config.training.trainers]
    assert names == ["norm_train", "pact_train", "fpgm_train", "distill_train", "null", "null"]
    assert [one.quantized for one in config.training.trainers] == [False, True, False, False, False, False]
