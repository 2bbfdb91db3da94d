"""`lowbit train --finetune`: which settings are chosen, and that given ones win."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.recipe import load_recipe, make_recipe
from lowbit.training.finetune import finetune_config, preset_for
from tests.support.runs import tiny_values


def config(recipe=None, **settings):
    values = tiny_values(Path("run"), pretrained_model="best.pdparams", **settings)
    return validate(values | ({"Recipe": recipe} if recipe else {}), {}, "tiny")


def test_four_bits_train_longer_and_faster_than_eight_and_have_a_teacher():
    eight, _ = finetune_config(config("qat_w8a8"), ())
    four, lines = finetune_config(config("qat_w4a4"), ())
    assert eight.Optimizer.lr.learning_rate == pytest.approx(0.001)
    assert four.Optimizer.lr.learning_rate == pytest.approx(0.01)
    assert eight.Distillation is None and four.Distillation.teacher == "fp32"
    assert four.Optimizer.lr.warmup_epoch == 1.5 and eight.Optimizer.lr.warmup_epoch == 0
    assert eight.Global.epochs == four.Global.epochs == 30  # of 1,437 images
    assert lines[0].startswith("fine-tuning on 1,437 images, fewer than 8 bits")
    assert "  Optimizer.lr.learning_rate: 0.0100" in lines and "  Distillation.teacher: fp32" in lines


def test_what_is_given_wins():
    asked = config("qat_w4a4", epochs=4)
    found, lines = finetune_config(asked, {"Global.epochs", "Optimizer.lr.learning_rate", "Distillation"})
    assert found.Global.epochs == 4 and found.Optimizer.lr.learning_rate == 0.1
    assert found.Distillation is None and found.Optimizer.lr.warmup_epoch == pytest.approx(0.2)
    assert not any("epochs:" in line or "learning_rate" in line or "teacher" in line for line in lines)


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        (None, "full precision"),
        (load_recipe("ptq_w8a8"), "8 bits"),
        (make_recipe({"weight_bits": 8, "activation_bits": 4}), "fewer than 8 bits"),
        (load_recipe("qt_w4a4g4"), "quantized gradients"),
    ],
)
def test_the_recipe_decides(recipe, kind):
    assert preset_for(recipe).kind == kind


def test_many_images_need_few_epochs():
    preset = preset_for(load_recipe("qat_w4a4"))
    assert [preset.epochs(images) for images in (100, 50_000, 10**7)] == [30, 6, 3]


def test_it_needs_trained_weights():
    values = tiny_values(Path("run"))
    with pytest.raises(LowbitError, match="--pretrained"):
        finetune_config(validate(values, {}, "tiny"), ())
