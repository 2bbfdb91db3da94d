from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.training.checkpoint import read_checkpoint, save_checkpoint
from lowbit.training.loop import train
from lowbit.training.trained_model import open_checkpoint, open_weights
from tests.support.runs import tiny_config, tiny_values
from tests.support.tiny_net import TinyNet


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("runs") / "run", epochs=1))


def outputs(model) -> np.ndarray:
    return model(paddle.full([2, 3, 32, 32], 0.3)).numpy()


def test_a_run_folder_stands_for_its_best_checkpoint(run):
    trained = open_checkpoint(run)
    assert trained.source == run / "checkpoints" / "best.lowbit"
    assert trained.classes == [str(digit) for digit in range(10)]
    assert not trained.model.training
    assert [type(op).__name__ for op in trained.preprocessing] == ["NormalizeImage"]


def test_the_checkpoint_and_the_weights_beside_it_are_the_same_model(run):
    config = validate({"Arch": {"name": "tests.support.tiny_net:TinyNet"}, "DataLoader": {}}, {}, "test")
    weights = open_weights(config, run / "checkpoints" / "latest.pdparams")
    checkpoint = open_checkpoint(run / "checkpoints" / "latest.lowbit")
    np.testing.assert_array_equal(outputs(weights.model), outputs(checkpoint.model))
    assert weights.classes == checkpoint.classes  # ten, though the config does not say so
    assert weights.preprocessing == checkpoint.preprocessing


def test_weights_without_anything_beside_them_need_preprocessing_from_the_config(run, tmp_path):
    lonely = tmp_path / "weights.pdparams"
    lonely.write_bytes((run / "checkpoints" / "latest.pdparams").read_bytes())
    config = validate({"Arch": {"name": "tests.support.tiny_net:TinyNet"}, "DataLoader": {}}, {}, "test")
    trained = open_weights(config, lonely)
    with pytest.raises(LowbitError, match=r"how images are prepared for .*weights\.pdparams is not known"):
        _ = trained.preprocessing


def test_the_number_of_classes_asked_for_must_be_the_weights(run, tmp_path):
    values = tiny_values(tmp_path)
    values["Arch"]["class_num"] = 12
    with pytest.raises(LowbitError, match=r"(?s)do not fit the model.*head\.weight \(file \[128, 10\]"):
        open_weights(validate(values, {}, "test"), run / "checkpoints" / "latest.pdparams")


def test_a_folder_without_a_checkpoint_says_what_to_give(tmp_path):
    with pytest.raises(LowbitError, match=r"no lowbit checkpoint there; give a run folder"):
        open_checkpoint(tmp_path)


def function_that_must_not_run(num_classes: int):
    raise AssertionError("a checkpoint made lowbit call a function")


def build_by_function(num_classes: int):
    return TinyNet(num_classes)


@pytest.mark.parametrize("name", ["os:system", f"{__name__}:function_that_must_not_run"])
def test_a_checkpoint_cannot_make_lowbit_call_a_function(run, tmp_path, name):
    """The name of the model comes out of the file; a crafted one must not become a command."""
    trace = tmp_path / "trace"
    crafted = read_checkpoint(run / "checkpoints" / "latest.lowbit")
    kwargs = {"command": f"touch {trace}"} if name == "os:system" else {}
    crafted.config["Arch"] |= {"name": name, "kwargs": kwargs}
    crafted.model_name = name
    save_checkpoint(tmp_path / "evil.lowbit", crafted)
    with pytest.raises(LowbitError, match=r"imports no code because a file asks for it.*--trust-code"):
        open_checkpoint(tmp_path / "evil.lowbit")
    assert not trace.exists()


def test_a_function_that_the_users_own_config_names_may_build_the_model(tmp_path):
    values = tiny_values(tmp_path / "run", epochs=1)
    values["Arch"]["name"] = f"{__name__}:build_by_function"
    config = validate(values, {}, "test")
    folder = train(config)
    with pytest.raises(LowbitError, match="--trust-code"):
        open_checkpoint(folder)
    for how in ({"config": config}, {"trust": True}, {"trust": values["Arch"]["name"]}):
        assert open_checkpoint(folder, **how).classes == [str(digit) for digit in range(10)]


def test_a_checkpoint_that_names_two_models_is_refused(run, tmp_path):
    crafted = read_checkpoint(run / "checkpoints" / "latest.lowbit")
    crafted.model_name = "resnet20"
    save_checkpoint(tmp_path / "two.lowbit", crafted)
    with pytest.raises(LowbitError, match="names two models"):
        open_checkpoint(tmp_path / "two.lowbit")


def test_weights_that_are_not_finite_are_named(run, tmp_path):
    crafted = read_checkpoint(run / "checkpoints" / "latest.lowbit")
    crafted.model["norm._variance"] = crafted.model["norm._variance"] * np.float32("inf")
    save_checkpoint(tmp_path / "inf.lowbit", crafted)
    with pytest.raises(LowbitError, match=r"inf\.lowbit: NaN or Inf in norm\._variance"):
        open_checkpoint(tmp_path / "inf.lowbit")


def test_a_config_for_another_model_is_refused(run, tmp_path):
    values = tiny_values(tmp_path)
    values["Arch"]["name"] = "resnet20"
    with pytest.raises(LowbitError, match=r"is a model of tests\.support\.tiny_net:TinyNet, not of resnet20"):
        open_checkpoint(run, validate(values, {}, "test"))
