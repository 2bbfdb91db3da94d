from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.data import Batch
from lowbit.deploy.verify.agreement import measure_agreement, model_answer
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


def test_an_engine_that_gets_some_of_the_images():
    model, data = small_net(), batches()
    asked = []

    def other(x):
        asked.append(x)
        return -model_answer(model)(x)

    rows = {0: 4, 1: 0, 2: 3}
    own, results = measure_agreement(model_answer(model), {"other": other}, data, only={"other": rows.get})
    given = [data[number].images[: rows[number]] for number in (0, 2)]
    expected = np.concatenate([model(paddle.to_tensor(one)).numpy() for one in given])
    labels = np.concatenate([data[0].labels, data[2].labels[:3]])
    assert all(np.array_equal(*pair) for pair in zip(asked, given, strict=True))
    assert own.images == 12 and results["other"].images == 7
    assert results["other"].top1 == (expected.argmin(1) == labels).mean()
    assert results["other"].agreement == (expected.argmin(1) == expected.argmax(1)).mean()
