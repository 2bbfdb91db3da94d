from __future__ import annotations

import numpy as np
import paddle
import pytest
from scipy.special import log_softmax, softmax

from lowbit.config.schema import CrossEntropy, DistillationSection
from lowbit.training.losses import cross_entropy, cross_entropy_of_outputs, distilled, divergence

LOGITS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32) * 3
TEACHER = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32) * 3
LABELS = np.array([0, 1, 2, 3, 3])


def plain_divergence(logits, teacher, temperature):
    p, log_q = softmax(teacher / temperature, axis=1), log_softmax(logits / temperature, axis=1)
    return temperature**2 * np.mean(np.sum(p * (np.log(p) - log_q), axis=1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_divergence_is_the_formula(temperature):
    got = divergence(paddle.to_tensor(LOGITS), paddle.to_tensor(TEACHER), temperature).item()
    assert got == pytest.approx(plain_divergence(LOGITS, TEACHER, temperature), rel=1e-5)
    assert got > 0


def test_divergence_is_finite_for_answers_that_are_certain():
    certain = paddle.to_tensor([[200.0, -200.0]])
    assert divergence(certain, certain, 1.0).item() == 0
    assert np.isfinite(divergence(certain, -certain, 1.0).item())


def test_its_gradient_pulls_the_student_to_the_teacher_and_leaves_the_teacher_alone():
    logits, teacher = paddle.to_tensor(LOGITS), paddle.to_tensor(TEACHER)
    logits.stop_gradient = False
    divergence(logits, teacher, 2.0).backward()
    expected = 2.0 * (softmax(LOGITS / 2, axis=1) - softmax(TEACHER / 2, axis=1)) / len(LOGITS)
    np.testing.assert_allclose(logits.grad.numpy(), expected, atol=1e-6)
    assert teacher.grad is None


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_the_loss_is_weighed_from_its_two_parts(weight):
    logits, labels = paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS)
    ce = cross_entropy(CrossEntropy(), logits, labels)
    section = DistillationSection(teacher="fp32", weight=weight, temperature=3.0)
    loss, parts = distilled(section, ce, logits, paddle.to_tensor(TEACHER))
    assert parts["ce"] == pytest.approx(-np.mean(log_softmax(LOGITS, axis=1)[range(5), LABELS]), rel=1e-5)
    assert parts["kl"] == pytest.approx(plain_divergence(LOGITS, TEACHER, 3.0), rel=1e-5)
    assert loss.item() == pytest.approx((1 - weight) * parts["ce"] + weight * parts["kl"], rel=1e-6)


def test_auxiliary_classifiers_count_three_tenths_each():
    logits, other, labels = (paddle.to_tensor(one) for one in (LOGITS, TEACHER, LABELS))
    own, theirs = (float(cross_entropy(CrossEntropy(), one, labels)) for one in (logits, other))
    assert float(cross_entropy_of_outputs(logits, labels)) == pytest.approx(own)
    assert float(cross_entropy_of_outputs([logits, other, None, other], labels)) == pytest.approx(
        own + 0.6 * theirs
    )
