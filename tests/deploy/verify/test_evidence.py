from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from lowbit.data import ArrayDataset, Loader
from lowbit.deploy.verify import Candidate, report_values, verify
from lowbit.deploy.verify.agreement import model_answer
from lowbit.deploy.verify.evidence import (
    Ties,
    count_ties,
    images_needed,
    lower_bound,
    relative_error,
    sign_test,
    weigh,
)
from lowbit.deploy.verify.tables import conclusion
from tests.support.small_net import Answering, ProgressBar, small_net


@pytest.mark.parametrize(
    ("images", "same"), [(1, 1), (5, 0), (32, 32), (64, 60), (1000, 995), (20000, 15000)]
)
def test_the_bound_is_clopper_and_pearsons(images, same):
    expected = beta.ppf(0.05, same, images - same + 1) if same else 0.0
    assert lower_bound(images, same) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("limit", [0.5, 0.9, 0.99, 0.999])
def test_the_number_of_images_is_the_smallest_whose_bound_reaches_the_limit(limit):
    needed = images_needed(limit)
    assert lower_bound(needed, needed) >= limit > lower_bound(needed - 1, needed - 1)


def test_reasons():
    assert weigh(299, 0.5, 0.99).conclusive and weigh(299, 0.5, 0.99).judged_by == "agreement"
    assert "298 images are few: it takes 299" in weigh(298, 0.5, 0.99).reason
    assert "one class to 93 % of the images" in weigh(1000, 0.93, 0.99).reason
    assert " and " in weigh(5, 1.0, 0.99).reason
    assert weigh(1, 1.0, 0.0).conclusive, "nothing is asked for"
    assert not weigh(10**6, 0.1, 1.0).conclusive


def test_relative_error():
    rng = np.random.default_rng(0)
    outputs = rng.standard_normal((50, 4)) + np.array([100, 0, 0, 0])  # one class for all
    nothing = np.zeros(50, bool)
    assert relative_error(outputs, outputs, nothing) == 0
    constant = np.broadcast_to(outputs.mean(axis=0), outputs.shape)
    assert relative_error(outputs, constant, nothing) == pytest.approx(1)
    assert relative_error(outputs, constant, ~nothing) == 0
    noisy = outputs + 0.05 * rng.standard_normal(outputs.shape)
    assert relative_error(outputs, noisy, nothing) == pytest.approx(0.05, rel=0.3)
    assert relative_error(outputs, np.full_like(outputs, np.nan), nothing) == math.inf
    assert relative_error(outputs[:1], outputs[:1] + 0.1, nothing[:1]) < 0.01, "one image: by its classes"


def loader(count: int) -> Loader:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 4
    dataset = ArrayDataset(rng.integers(0, 256, (count, 8, 8, 3), np.uint8), labels, list("abcd"), "noise")

    def transform(image, generator, out=None):
        values = (image.transpose(2, 0, 1) / 64 - 2).astype(np.float32)
        if out is not None:
            out[:] = values
        return values

    transform.at_least = None
    options = {"batch_size": 64, "shuffle": False, "drop_last": False, "workers": 1, "seed": 0}
    return Loader(dataset, transform, **options, training=False)


def one_class(model):
    """The model with outputs that vary as before, all images being of one class."""
    model.last.bias.set_value(model.last.bias + np.float32([50, 0, 0, 0]))
    return model


def judged(model, answer, count=32, **options):
    candidates = [Candidate("paddle", Answering(answer))]
    return verify(model, candidates, loader(count), progress=ProgressBar(), latency=False, **options)


@pytest.mark.parametrize("count", [32, 400])
def test_an_engine_that_always_gives_the_models_one_class_fails(count):
    model = one_class(small_net())
    center = model_answer(model)(np.zeros((1, 3, 8, 8), np.float32))
    report = judged(model, lambda images: np.repeat(center, len(images), axis=0), count)
    assert report.model.largest_class == 1 and report.engines[0].result.agreement == 1
    assert not report.evidence.conclusive and len(report.failing) == 1
    first, second, *_ = conclusion(report)
    assert first.startswith("Agreement proves little: ") and "one class to 100 %" in first
    assert second.startswith("FAILED: function 1.0 gives the trained model's class on 100.00 %")
    values = json.loads(json.dumps(report_values(report, []), allow_nan=False))
    assert values["passed"] is False and values["engines"][0]["passed"] is False
    assert values["evidence"]["judged_by"] == "agreement and outputs"
    assert values["evidence"]["needed"] == 299 and values["engines"][0]["verdict"] == second


def test_an_engine_with_the_models_outputs_passes_on_few_images():
    model = one_class(small_net())
    rng = np.random.default_rng(1)

    def answer(images):
        outputs = model_answer(model)(images)
        return outputs + (0.01 * rng.standard_normal(outputs.shape)).astype(np.float32)

    report = judged(model, answer)
    assert report.failing == [] and 0 < report.engines[0].result.relative_error < 0.1
    assert "relative error of its outputs" in report.verdict(report.engines[0])


def test_with_enough_images_agreement_decides_alone():
    model = small_net()
    report = judged(model, lambda images: 3 * model_answer(model)(images), 400)
    assert report.evidence.conclusive, report.evidence
    assert report.engines[0].result.relative_error > 0.1 and report.failing == []
    assert len(judged(model, lambda images: 3 * model_answer(model)(images), 200).failing) == 1


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (3, 3), (10, 0), (2, 9), (40, 25)])
def test_the_sign_test_is_the_exact_binomial_one(lost, gained):
    expected = binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert sign_test(lost, gained) == pytest.approx(expected)


def logits(images=400, seed=0):
    return np.random.default_rng(seed).normal(0, 2, (images, 10))


def test_small_noise_makes_near_ties_and_no_errors():
    model, noise = logits(), np.random.default_rng(1).normal(0, 0.1, (400, 10))
    labels = model.argmax(axis=1)
    labels[::2] = (labels[::2] + 1) % 10
    found = count_ties(model, model + noise, labels)
    assert 5 < found.differing < 60 and found.errors <= 1
    assert found.noise == pytest.approx(0.1 * np.sqrt(2), rel=0.15)
    assert found.margin < 0.3 < found.usual_margin
    assert found.noise_is_small and found.accuracy_is_equal


def test_a_few_images_that_are_really_wrong_are_errors_in_spite_of_the_noise():
    model, noise = logits(), np.random.default_rng(1).normal(0, 0.1, (400, 10))
    answers = model + noise
    answers[:20] = -answers[:20]
    found = count_ties(model, answers, model.argmax(axis=1))
    assert 17 <= found.errors <= 20
    assert not found.accuracy_is_equal and found.lost >= 20 and found.gained == 0


def test_an_engine_that_answers_something_else_has_no_small_noise():
    found = count_ties(logits(), logits(seed=1), None)
    assert not found.noise_is_small
    assert found.lost is None and not found.accuracy_is_equal  # unknown is not equal


def test_nan_is_no_near_tie():
    model = logits(4)
    answers = model.copy()
    answers[1, 3] = np.nan
    assert count_ties(model, answers, None).errors == 1


def test_equal_answers_have_no_ties():
    model = logits(8)
    assert count_ties(model, model, None) == Ties(
        0, 0, None, count_ties(model, model, None).usual_margin, 0.0, None, None
    )
