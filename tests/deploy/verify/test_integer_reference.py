from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.data import Batch
from lowbit.deploy.onnx import export_onnx
from lowbit.deploy.verify import integer_reference
from lowbit.deploy.verify.agreement import measure_agreement, model_answer
from lowbit.deploy.verify.integer_reference import IntegerReference, spread_batches
from tests.support.small_net import images, small_net


def batches(count=3):
    return [Batch(images(4, seed), np.array([0, 1, 2, 3]), 1.0) for seed in range(count)]


def test_the_integer_reference_has_the_models_integers_exactly():
    model = small_net()
    reference = IntegerReference(model)
    _, results = measure_agreement(model_answer(model), {"integers": reference}, batches(2))
    assert reference.unequal == 0 and reference.first_layer is None
    assert reference.integers == 8 * (3 * 64 + 8 * 64 * 2 + 8)
    assert results["integers"].agreement == 1.0 and results["integers"].max_difference < 1e-4


def test_the_integer_reference_finds_sums_that_are_not_exact(monkeypatch):
    """Sums of floats that lose a bit, as those beyond 2^24 would, are found in the layer after."""
    model = small_net()
    product = model.stem.product

    def inexact(x, weight, bias, *geometry):
        sums = product(x, weight, bias, *geometry)
        return sums if x.dtype == paddle.float64 else sums + 3000 * (sums > 2000).astype("float32")

    monkeypatch.setattr(model.stem, "product", inexact)
    reference = IntegerReference(model)
    reference(images(4))
    assert reference.unequal > 0 and reference.first_layer == "left"


def test_the_runtime_computes_the_integer_reference(tmp_path, monkeypatch):
    """With a file, the slow way is taken only for a batch whose integers are not the model's own."""
    model = small_net()
    made = export_onnx(model, tmp_path / "inference.onnx", model_name="small", image_shape=(3, 8, 8))
    reference, slow = IntegerReference(model, made.path), []
    plain = IntegerReference._with_exact_sums
    monkeypatch.setattr(
        IntegerReference, "_with_exact_sums", lambda self, x: slow.append(1) or plain(self, x)
    )
    _, results = measure_agreement(reference.model_answer, {"integers": reference}, batches(2))
    assert not slow and reference.unequal == 0 and reference.integers == 8 * (3 * 64 + 8 * 64 * 2 + 8)
    assert results["integers"].agreement == 1.0
    found = reference._by_runtime
    monkeypatch.setattr(
        reference, "_by_runtime", lambda x: (found(x)[0], {n: v + 1 for n, v in found(x)[1].items()})
    )
    reference(images(4))
    assert slow == [1] and reference.unequal == 0


@pytest.fixture
def reference(tmp_path):
    model = small_net()
    made = export_onnx(model, tmp_path / "inference.onnx", model_name="small", image_shape=(3, 8, 8))
    return IntegerReference(model, made.path)


def test_a_proven_reference_stands_in_for_the_network(reference, monkeypatch):
    data = batches(6)
    expected = [model_answer(reference._model)(batch.images) for batch in data]
    assert reference.prove(spread_batches(data, len(data), 8)) == [0, 3]
    assert reference.stands_in and reference.by_network == 8 and reference.unequal == 0
    compared = reference.integers
    monkeypatch.setattr(reference, "_by_network", lambda x: pytest.fail("the network was asked"))
    for batch, own in zip(data, expected, strict=True):
        np.testing.assert_allclose(
            reference.model_answer(batch.images), own, rtol=0, atol=1e-4
        )  # its bias is rounded
        np.testing.assert_allclose(reference(batch.images), own, rtol=0, atol=1e-4)  # its bias is rounded
    assert reference.integers == compared  # nothing is said about images that the network did not see


def test_integers_are_compared_on_the_first_images_of_a_sample_and_answers_on_all(reference, monkeypatch):
    monkeypatch.setattr(integer_reference, "_READ", 4)
    data = batches(3)
    assert reference.prove(enumerate(batch.images for batch in data)) == [0, 1, 2]
    assert (reference.read, reference.by_network) == (4, 12)
    other = IntegerReference(reference._model, reference._runtime.path)
    run = other._runtime.run
    monkeypatch.setattr(other._runtime, "run", lambda images: -run(images))
    assert other.prove(enumerate(batch.images for batch in data)) == [] and not other.stands_in


def test_without_proof_the_network_answers_all(reference, monkeypatch):
    """One integer that differs is enough."""
    found = reference._by_runtime

    def moved(x):
        if (answer := found(x)) is not None:
            next(iter(answer[1].values())).flat[0] += 1
        return answer

    monkeypatch.setattr(reference, "_by_runtime", moved)
    data = batches(4)
    assert reference.prove(spread_batches(data, len(data), 8)) == []
    assert not reference.stands_in and reference.by_network == reference.integers == 0
    for batch in data:
        own = reference.model_answer(batch.images)
        np.testing.assert_array_equal(own, model_answer(reference._model)(batch.images))
        reference(batch.images)
    assert reference.by_network == 16 and reference.unequal == 0


@pytest.mark.parametrize(("needed", "numbers"), [(0, [0]), (5, [0, 3]), (8, [0, 2]), (99, [0, 1, 2, 3])])
def test_a_sample_is_spread_and_large_enough(needed, numbers):
    assert [number for number, _ in spread_batches(batches(4), 4, needed)] == numbers
