"""What training minimises: cross entropy with label smoothing, and a teacher's share of it; in fp32."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F

from lowbit.config.schema import CrossEntropy, DistillationSection

PARTS = ("ce", "kl")  # of a loss that a teacher has a share of


def cross_entropy(section: CrossEntropy, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """The mean loss of a batch. `epsilon` spreads that share of the target evenly over all classes."""
    if not section.epsilon:
        loss = F.cross_entropy(logits, labels)
    else:
        # -Σ target·log p, with the target's even share taken as a mean: no one-hot matrix is built.
        log_likelihood = F.log_softmax(logits)
        own = F.nll_loss(log_likelihood, labels)
        loss = (1 - section.epsilon) * own - section.epsilon * log_likelihood.mean()
    return loss if section.weight == 1 else section.weight * loss


def divergence(logits: paddle.Tensor, teacher: paddle.Tensor, temperature: float) -> paddle.Tensor:
    """T²·KL(teacher ‖ student) of softmax(logits / T), the mean of a batch.

    T² keeps the size of the gradient where a higher temperature makes the answers softer.

    >>> logits = paddle.to_tensor([[1.0, 2.0]])
    >>> divergence(logits, logits, 4.0).item()
    0.0
    """
    student, teacher = F.log_softmax(logits / temperature), F.log_softmax(teacher / temperature)
    return (teacher.exp() * (teacher - student)).sum(axis=1).mean() * temperature**2


def distilled(
    section: DistillationSection, ce: paddle.Tensor, logits: paddle.Tensor, teacher: paddle.Tensor
) -> tuple[paddle.Tensor, dict[str, float]]:
    """(1 - weight)·cross entropy + weight·T²·KL(teacher ‖ student), and both of them by name."""
    kl = divergence(logits, teacher, section.temperature)
    parts = dict(zip(PARTS, (float(ce), float(kl)), strict=True))
    return (1 - section.weight) * ce + section.weight * kl, parts
