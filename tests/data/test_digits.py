from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lowbit.data import formats as digits
from lowbit.data.formats import open_digits
from lowbit.errors import LowbitError


def test_the_split_is_fixed_and_holds_every_digit_once():
    train, val = open_digits("train"), open_digits("val")
    assert (len(train), len(val)) == (1437, 360)
    labels = [dataset.label(index) for dataset in (train, val) for index in range(len(dataset))]
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert min(np.bincount(labels[1437:])) >= 25
    # Which digits are in which split must not move: figures in the documents depend on it.
    assert hashlib.sha256(bytes(labels)).hexdigest()[:16] == "58d022c02cb75337"


def test_images_are_what_scikit_learn_shows():
    from sklearn.datasets import load_digits

    image = open_digits("val").image(0)
    assert image.shape == (32, 32, 3) and image.dtype == np.uint8 and image.max() > 200
    centres = image[1:-1, 1:-1, 0].reshape(-1)  # corners of an upscaled image equal the small image's
    corners = image[[0, 0, -1, -1], [0, -1, 0, -1], 0]
    table = np.rint(load_digits().images * 255 / 16)
    assert any(np.array_equal(small[[0, 0, -1, -1], [0, -1, 0, -1]], corners) for small in table)
    assert centres.std() > 30


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(LowbitError, match=r"pip install 'lowbit\[demo\]'"):
        open_digits("train")
