from __future__ import annotations

import numpy as np
import pytest
from paddle import nn

from lowbit.deploy.export import check_image_shape, expected_logits, untranslatable
from lowbit.errors import LowbitError


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 0), (3, 4.0, 4), [1, 2, 3, 4]])
def test_a_shape_that_is_none(shape):
    with pytest.raises(LowbitError, match="image_shape must be"):
        check_image_shape(shape)


def test_the_models_answers(build, images):
    assert expected_logits(build(), images, "tiny", ["a", "b", "c", "d"]).shape == (8, 4)


def test_other_class_names(build, images):
    with pytest.raises(LowbitError, match="has 4 outputs, but 1 class names"):
        expected_logits(build(), images, "tiny", ["a"])


def test_images_that_do_not_fit(build, images):
    with pytest.raises(LowbitError, match=r'does not run on images of 1x16x16.*layer "conv"'):
        expected_logits(build(), images[:, :1], "tiny")


def test_answers_that_are_no_logits(images):
    with pytest.raises(LowbitError, match="must return one tensor of logits"):
        expected_logits(nn.Identity(), images, "tiny")


def test_what_paddle_cannot_translate():
    error = untranslatable(ValueError("(InvalidArgument) 4 != 3."), nn.Identity(), "net")
    assert "could not translate Identity.forward" in str(error)
    assert np.char.count(str(error), "4 != 3") == 1
