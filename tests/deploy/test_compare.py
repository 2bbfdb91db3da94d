from __future__ import annotations

import numpy as np
import pytest

from lowbit.deploy import PaddleEngine, compare_logits, compare_outputs
from lowbit.errors import LowbitError


def test_differences_per_image():
    expected = np.array([[1.0, 4.0], [2.0, 0.0], [0.0, 0.0]], np.float32)
    answers = np.array([[1.0, 3.0], [2.0, 3.0], [0.0, 0.0]], np.float32)
    comparison = compare_logits(expected, answers)
    assert comparison.absolute.tolist() == [1, 3, 0]
    assert comparison.relative.tolist() == [0.25, 1.5, 0]
    assert comparison.same_class.tolist() == [True, False, True]
    assert comparison.top1_agreement == pytest.approx(2 / 3)
    assert comparison.max_absolute == 3 and comparison.max_relative == 1.5
    assert comparison.within(1.5) and not comparison.within(1.4)
    assert (
        str(comparison) == "3 images: largest difference 3 (1.5 of the largest logit), same class for 66.7%"
    )


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_not_a_number_is_never_close(broken):
    assert not compare_logits(np.array([[1.0, 2.0]]), np.array([[1.0, broken]])).within(1e9)
    assert not compare_logits(np.array([[1.0, broken]]), np.array([[1.0, 2.0]])).within(1e9)


def test_a_difference_from_all_zero_logits_is_infinitely_large():
    assert compare_logits(np.zeros((1, 2)), np.ones((1, 2))).max_relative == np.inf


def test_shapes_must_agree():
    with pytest.raises(LowbitError, match=r"the model answers \[1, 2\], the engine \[1, 3\]"):
        compare_logits(np.zeros((1, 2)), np.zeros((1, 3)))


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_model_against_export(build, exported, images, batch_size):
    model = build()
    engine = PaddleEngine(exported.directory)
    comparison = compare_outputs(model, engine, images, batch_size=batch_size)
    assert comparison.count == len(images) and comparison.within(1e-5)
    assert model.training, "the model is as it was"


def test_another_models_export_is_found_out(build, exported, images):
    assert not compare_outputs(build(seed=1), PaddleEngine(exported.directory), images).within(1e-2)


def test_nothing_to_compare(tiny, exported, images):
    with pytest.raises(LowbitError, match="at least one image"):
        compare_outputs(tiny, PaddleEngine(exported.directory), images[:0])


def test_nans_agree_with_nothing():
    logits, broken = np.eye(2, dtype=np.float32), np.full((2, 2), np.nan, np.float32)
    assert compare_logits(broken, broken).top1_agreement == 0
    assert compare_logits(logits, broken).top1_agreement == 0
    assert compare_logits(logits, logits).top1_agreement == 1
