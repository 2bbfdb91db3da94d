from __future__ import annotations

import json

import numpy as np
import paddle
import pytest

from lowbit.config import load_config, validate
from lowbit.data import write_lite_data
from lowbit.errors import LowbitError
from lowbit.nn.calibration import find_quantizers
from lowbit.recipe import load_recipe
from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.loop import train
from lowbit.training.post_training import calibrate_run, calibration_config
from lowbit.training.trained_model import open_checkpoint
from tests.support.runs import ROOT, tiny_config, tiny_values

RECIPE = str(ROOT / "recipes/ptq_w8a8.yaml")


@pytest.fixture(scope="module")
def fp32(tmp_path_factory):
    return train(tiny_config(tmp_path_factory.mktemp("fp32") / "run"))


def values(folder, fp32, **settings):
    settings = {"pretrained_model": str(fp32 / "checkpoints/best.pdparams")} | settings
    return tiny_values(folder, **settings) | {"Recipe": RECIPE}


def config(folder, fp32, *, change=lambda values: None, **options):
    given = values(folder, fp32)
    change(given)
    return calibration_config(validate(given, {}, "ptq"), **options)


@pytest.fixture(scope="module")
def run(fp32, tmp_path_factory):
    return calibrate_run(config(tmp_path_factory.mktemp("ptq") / "run", fp32, steps=3))


def test_the_run_folder_is_like_that_of_training(run, fp32):
    names = {file.name for file in run.iterdir()} | {file.name for file in (run / "checkpoints").iterdir()}
    assert {"config.yaml", "plan.json", "metrics.jsonl", "run.json"} <= names
    assert {"best.lowbit", "latest.lowbit", "latest.pdparams", "fp32.lowbit"} <= names
    kinds = {r["kind"]: r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    assert kinds.keys() == {"baseline", "eval"}
    assert abs(kinds["eval"]["top1"] - kinds["baseline"]["top1"]) <= 0.02  # 8 bits
    assert kinds["eval"]["loss"] != kinds["baseline"]["loss"]
    checkpoint = read_checkpoint(run / "checkpoints/best.lowbit")
    assert checkpoint.progress.best == kinds["eval"]["top1"]
    assert checkpoint.recipe["calibration"] == {"steps": 3, "correct_bias": True}
    assert load_config(run / "config.yaml").Recipe == checkpoint.recipe


def test_no_weight_is_trained_but_scales_are_aligned(run, fp32):
    before = read_checkpoint(fp32 / "checkpoints/best.lowbit").model
    after = read_checkpoint(run / "checkpoints/latest.lowbit").model
    changed = [name for name in before if after[name].tobytes() != before[name].tobytes()]
    # Batch norm is folded into its layer. Biases are corrected by what rounding the weights adds. The largest
    # weight of a channel gives its scale: it is moved by half a percent at most, so that every engine rounds
    # alike (nn/exact_rounding.py).
    norm = ["norm._mean", "norm._variance", "norm.bias", "norm.weight"]
    assert sorted(changed) == ["conv.bias", "conv.weight", "head.bias", *norm]
    gain = before["norm.weight"] / np.sqrt(before["norm._variance"] + 1e-5)
    np.testing.assert_allclose(
        after["conv.weight"], before["conv.weight"] * gain[:, None, None, None], rtol=0.00501
    )
    for quantizer in find_quantizers(open_checkpoint(run).model):
        quantizer.check_ready()


def test_images_are_prepared_as_in_evaluation(fp32, tmp_path):
    made = config(tmp_path, fp32, batch_size=5)
    assert made.DataLoader.Train.dataset.transform_ops == made.DataLoader.Eval.dataset.transform_ops
    assert made.DataLoader.Train.dataset.split == "train"
    assert made.DataLoader.Train.sampler.batch_size == 5
    assert made.DataLoader.Train.sampler.shuffle and not made.DataLoader.Train.sampler.drop_last


def test_what_only_training_uses_is_left_out(fp32, tmp_path):
    def change(given):
        given["AMP"] = {"level": "O1"}
        given["Distillation"] = {"teacher": "nowhere.pdparams"}
        given["Global"]["checkpoints"] = "auto"

    made = config(tmp_path, fp32, change=change)
    assert made.AMP is None and made.Distillation is None and made.Global.checkpoints is None


def test_given_images(fp32, tmp_path):
    lite = write_lite_data(tmp_path / "lite", tar=False)
    folder = config(tmp_path, fp32, data_path=lite).DataLoader.Train.dataset
    assert (folder.name, folder.path, folder.split) == ("AutoDataset", str(lite), "train")
    file = config(tmp_path, fp32, data_path=lite / "val_list.txt").DataLoader.Train.dataset
    assert (file.image_root, file.cls_label_path) == (str(lite), str(lite / "val_list.txt"))

    def without_train(given):
        del given["DataLoader"]["Train"]

    split = config(tmp_path, fp32, change=without_train, data_path=lite).DataLoader.Train
    assert split.sampler.batch_size == 32


def test_calibration_sees_those_images(fp32, tmp_path, monkeypatch):
    """More than there are asked for is said; without validation images there is no `best`."""
    lite = write_lite_data(tmp_path / "lite", tar=False)

    def change(given):
        shrink = [{"ResizeImage": {"size": 32}}, {"NormalizeImage": None}]
        given["DataLoader"]["Eval"]["dataset"]["transform_ops"] = shrink
        given["Global"]["eval_during_train"] = False

    made = config(tmp_path / "run", fp32, change=change, data_path=lite, batch_size=4)
    lines = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
    folder = calibrate_run(made)
    assert "Calibrated on 4 batches of 4 images (all there are; 10 were asked for)" in lines
    checkpoints = {file.name for file in (folder / "checkpoints").glob("*.lowbit")}
    assert checkpoints == {"latest.lowbit", "fp32.lowbit"}


def test_training_can_go_on_from_it(run, fp32, tmp_path):
    calibrated = read_checkpoint(run / "checkpoints/latest.lowbit")
    given = values(tmp_path / "more", fp32, checkpoints=str(run), epochs=1) | {"Recipe": calibrated.recipe}
    folder = train(validate(given, {}, "more"))
    after = read_checkpoint(folder / "checkpoints/latest.lowbit")
    assert after.progress.epoch == 1
    scale = "conv.input_quantizer.kept.range"
    assert after.model[scale].tobytes() == calibrated.model[scale].tobytes()  # fixed


def test_the_recipe_is_for_inputs_that_are_never_negative_too(run):
    model = open_checkpoint(run).model
    first, *_ = find_quantizers(model)
    assert first.grid().signed  # normalized images
    assert not model.head.input_quantizer.grid().signed  # behind a ReLU
    assert load_recipe(RECIPE).calibration.steps
    with paddle.no_grad():
        assert np.isfinite(model(paddle.ones([1, 3, 32, 32])).numpy()).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("Recipe"), "calibration needs a recipe.*--recipe FILE"),
        (lambda v: v["Global"].pop("pretrained_model"), "needs a trained model.*--pretrained FILE"),
        (lambda v: v["Global"].update(reset_classifier=True), "leave out reset_classifier"),
        (lambda v: v.update(Recipe={"weight_bits": 8}), "calibrates on no images: give --steps N"),
        (lambda v: v["DataLoader"].pop("Train"), "give the images to calibrate on with --data-path"),
    ],
)
def test_mistakes(fp32, tmp_path, change, message):
    with pytest.raises(LowbitError, match=message):
        config(tmp_path, fp32, change=change)


def test_a_config_without_preparation_of_images(fp32, tmp_path):
    with pytest.raises(LowbitError, match="does not say how images are prepared"):
        config(tmp_path, fp32, change=lambda v: v.update(DataLoader={}), data_path=tmp_path)
