from __future__ import annotations

import os
import re

import numpy as np
import paddle
import pytest

from lowbit.config import validate
from lowbit.config.transform_ops import ResizeImage
from lowbit.data import write_lite_data
from lowbit.errors import LowbitError
from lowbit.nn import eval_mode
from lowbit.nn.deployed_form import dynamic_inputs
from lowbit.training.freeze_dynamic_scales import deployable
from lowbit.training.loop import train
from lowbit.training.trained_model import open_checkpoint
from tests.support.runs import recipe, tiny_values


@pytest.fixture
def run(tmp_path):
    values = tiny_values(tmp_path / "run", epochs=1, image_shape=[3, 32, 32]) | {"Recipe": recipe()}
    return train(validate(values, {}, "low precision"))


def answers(trained) -> np.ndarray:
    images = paddle.to_tensor(np.random.default_rng(0).standard_normal((5, 3, 32, 32), dtype=np.float32))
    with eval_mode(trained.model):
        return trained.model(images).numpy()


def test_scales_are_fixed_once_and_kept_beside_the_checkpoint(run):
    said: list[str] = []
    trained = open_checkpoint(run)
    made = deployable(trained, tell=said.append)
    assert dynamic_inputs(trained.model) == ["conv", "head"] and not dynamic_inputs(made.model)
    assert made.source == run / "checkpoints/best_deployed.lowbit" and made.source.is_file()
    assert made.classes == trained.classes and made.config == trained.config and made.quantized
    text = "\n".join(said)
    assert re.search(r"2 layers choose .* in every call.* from 12 batches of training images", text)
    assert "on 360 validation images:" in text and f"kept as {made.source}" in text
    assert re.search(r"as trained +\d+\.\d\d %.*\ndeployed +\d+\.\d\d %.*\ndifference", text)

    again = deployable(open_checkpoint(run), tell=pytest.fail)
    by_name = open_checkpoint(made.source)
    for found in (again, by_name):
        np.testing.assert_array_equal(answers(found), answers(made))
    assert deployable(made, tell=pytest.fail) is made


def test_a_newer_checkpoint_is_fixed_anew(run):
    made = deployable(open_checkpoint(run), tell=lambda line: None)
    later = made.source.stat().st_mtime + 10
    os.utime(run / "checkpoints/best.lowbit", (later, later))
    said: list[str] = []
    deployable(open_checkpoint(run), tell=said.append)
    assert len(said) == 4


def test_other_images(run, tmp_path):
    folder = write_lite_data(tmp_path / "lite", tar=False)
    first = deployable(open_checkpoint(run), tell=lambda line: None)
    trained = open_checkpoint(run)
    trained.config.DataLoader.Eval.dataset.transform_ops.insert(0, ResizeImage(size=32))
    second = deployable(trained, data_path=folder, tell=lambda line: None)
    assert second.source == first.source
    assert np.abs(answers(first) - answers(second)).max() > 0


def test_without_images_it_says_what_is_missing(run):
    trained = open_checkpoint(run)
    trained.config.DataLoader.Train = None
    with pytest.raises(LowbitError, match=r"2 layers choose.*no DataLoader.Train.*export --data-path IMAGES"):
        deployable(trained, tell=pytest.fail)


@pytest.mark.parametrize("eval_", [None, "gone"])
def test_without_validation_images_the_accuracy_is_said_to_be_unknown(run, eval_, tmp_path):
    trained = open_checkpoint(run)
    if eval_ is None:
        trained.config.DataLoader.Eval = None
    else:
        dataset = {"name": "AutoDataset", "path": str(tmp_path / "gone"), "split": "val"}
        values = trained.config.model_dump(mode="json")
        values["DataLoader"]["Eval"]["dataset"] = dataset
        trained.config = validate(values, {}, "gone")
    said: list[str] = []
    deployable(trained, tell=said.append)
    assert "what that costs in accuracy is not known" in said[1]


def test_what_has_kept_scales_is_deployed_as_it_is(tmp_path):
    for more in ({}, {"Recipe": {"weight_bits": 4}}):
        folder = train(validate(tiny_values(tmp_path / f"run{len(more)}", epochs=1) | more, {}, "kept"))
        trained = open_checkpoint(folder)
        assert deployable(trained, tell=pytest.fail) is trained
