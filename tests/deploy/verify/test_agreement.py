from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.data import Batch
from lowbit.deploy.onnx import export_onnx
from lowbit.deploy.verify.agreement import IntegerReference, measure_agreement, model_answer
from lowbit.errors import LowbitError
from tests.support.small_net import images, small_net


def batches(count=3, labels=(0, 1, 2, 3)):
    return [Batch(images(4, seed), np.array(labels), 1.0) for seed in range(count)]


def test_figures_are_those_of_a_plain_count():
    model, data = small_net(), batches()

    def other(x):
        logits = model_answer(model)(x)
        logits[0] = -logits[0] * 3  # one image of four
        return logits

    ticks = []
    own, results = measure_agreement(
        model_answer(model), {"other": other}, data, on_batch=lambda: ticks.append(1)
    )
    expected = np.concatenate([model(paddle.to_tensor(batch.images)).numpy() for batch in data])
    answers = np.concatenate([other(batch.images) for batch in data])
    labels = np.concatenate([batch.labels for batch in data])
    got = results["other"]
    assert len(ticks) == 3 and got.images == own.images == 12
    assert own.top1 == (expected.argmax(1) == labels).mean()
    assert got.top1 == (answers.argmax(1) == labels).mean()
    assert own.top5 == got.top5 == 1.0  # of four classes
    assert (own.agreement, own.max_difference, own.mean_difference) == (1.0, 0.0, 0.0)
    assert got.agreement == (expected.argmax(1) == answers.argmax(1)).mean() < 1
    assert got.max_difference == pytest.approx(np.abs(expected - answers).max())
    assert got.mean_difference == pytest.approx(np.abs(expected - answers).mean())
    assert got.seconds > 0


def test_answers_that_are_not_numbers():
    own, results = measure_agreement(
        model_answer(small_net()), {"nan": lambda x: np.full((len(x), 4), np.nan, np.float32)}, batches(1)
    )
    assert results["nan"].top1 == 0.0 and results["nan"].max_difference == np.inf
    assert np.isfinite(own.mean_difference) and results["nan"].mean_difference == np.inf


def test_no_images_and_labels_of_other_data():
    model = model_answer(small_net())
    with pytest.raises(LowbitError, match="no images to verify on"):
        measure_agreement(model, {}, [])
    with pytest.raises(LowbitError, match="the data has a label 9, but the model has 4 outputs"):
        measure_agreement(model, {}, batches(1, labels=(0, 1, 2, 9)))


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
    plain = IntegerReference._by_model
    monkeypatch.setattr(IntegerReference, "_by_model", lambda self, x: slow.append(1) or plain(self, x))
    _, results = measure_agreement(reference.model_answer, {"integers": reference}, batches(2))
    assert not slow and reference.unequal == 0 and reference.integers == 8 * (3 * 64 + 8 * 64 * 2 + 8)
    assert results["integers"].agreement == 1.0
    found = reference._by_runtime
    monkeypatch.setattr(
        reference, "_by_runtime", lambda x: (found(x)[0], {n: v + 1 for n, v in found(x)[1].items()})
    )
    reference(images(4))
    assert slow == [1] and reference.unequal == 0
