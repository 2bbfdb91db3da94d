from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.data import Batch
from lowbit.deploy.onnx import export_onnx
from lowbit.deploy.verify.agreement import measure_agreement, model_answer
from lowbit.deploy.verify.integer_reference import IntegerReference, IntegersDifferError, Sample
from tests.support.small_net import images, small_net

ALL = Sample(every=1, rows=4)
HALF = Sample(every=2, rows=2)  # of the images of every second batch
INTEGERS = 3 * 64 + 8 * 64 * 2 + 8  # of an image


def batches(count=3):
    return [Batch(images(4, seed), np.array([0, 1, 2, 3]), 1.0) for seed in range(count)]


@pytest.fixture
def file(tmp_path):
    return export_onnx(
        small_net(), tmp_path / "inference.onnx", model_name="small", image_shape=(3, 8, 8)
    ).path


def answers(reference, sample, count=2):
    return measure_agreement(
        reference.model_answer, {"integers": reference}, batches(count), only={"integers": sample.rows_of}
    )


def test_the_integer_reference_has_the_models_integers_exactly():
    reference = IntegerReference(small_net(), ALL)
    _, results = answers(reference, ALL)
    assert reference.unequal == 0 and reference.first_layer is None and not reference.stands_in
    assert reference.integers == 8 * INTEGERS and reference.read == reference.by_network == 8
    assert results["integers"].agreement == 1.0 and results["integers"].max_difference < 1e-4


def test_the_integer_reference_finds_sums_that_are_not_exact(monkeypatch):
    """Sums of floats that lose a bit, as those beyond 2^24 would, are found in the layer after."""
    model = small_net()
    product = model.stem.product

    def inexact(x, weight, bias, *geometry):
        sums = product(x, weight, bias, *geometry)
        return sums if x.dtype == paddle.float64 else sums + 3000 * (sums > 2000).astype("float32")

    monkeypatch.setattr(model.stem, "product", inexact)
    reference = IntegerReference(model, ALL)
    reference.model_answer(images(4))
    assert reference.unequal > 0 and reference.first_layer == "left"


def test_the_network_answers_all_where_nothing_stands_in():
    model = small_net()
    reference = IntegerReference(model, HALF)
    for batch in batches(4):
        own = model_answer(model)(batch.images)
        np.testing.assert_allclose(reference.model_answer(batch.images), own, rtol=0, atol=1e-6)
    assert (reference.by_network, reference.read, reference.integers) == (16, 4, 4 * INTEGERS)


def test_the_runtime_stands_in_and_is_compared_on_the_sample(file, monkeypatch):
    model = small_net()
    reference = IntegerReference(model, HALF, file)
    monkeypatch.setattr(reference, "_with_exact_sums", lambda x: pytest.fail("the slow way was taken"))
    _, results = answers(reference, HALF, count=6)
    assert reference.stands_in and reference.unequal == 0 and reference.integers == 6 * INTEGERS
    assert reference.by_network == reference.read == results["integers"].images == 6
    other = IntegerReference(model, HALF, file)
    for batch in batches(6):
        own = model_answer(model)(batch.images)
        np.testing.assert_allclose(
            other.model_answer(batch.images), own, rtol=0, atol=1e-4
        )  # its bias is rounded


def test_one_integer_that_differs_is_enough(file, monkeypatch):
    reference = IntegerReference(small_net(), ALL, file)
    found = reference._by_runtime

    def moved(x):
        logits, integers = found(x)
        integers["left"].flat[0] += 1
        return logits, integers

    monkeypatch.setattr(reference, "_by_runtime", moved)
    with pytest.raises(IntegersDifferError):
        reference.model_answer(images(4))
    assert (reference.unequal, reference.first_layer) == (1, "left")


def test_an_answer_that_differs_is_enough(file, monkeypatch):
    reference = IntegerReference(small_net(), ALL, file)
    found = reference._by_runtime
    monkeypatch.setattr(reference, "_by_runtime", lambda x: (-found(x)[0], found(x)[1]))
    with pytest.raises(IntegersDifferError):
        reference.model_answer(images(4))


@pytest.mark.parametrize(
    ("count", "wanted", "rows"),
    [
        (4, 5, [2, 2, 2, 2]),
        (1, 64, [64]),
        (6, 3, [1, 0, 1, 0, 1, 0]),
        (3, 2, [1, 1, 1]),
    ],
)
def test_a_sample_is_spread_and_large_enough(count, wanted, rows):
    sample = Sample.spread(count, wanted)
    assert [sample.rows_of(number) for number in range(count)] == rows
