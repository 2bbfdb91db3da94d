"""Cross entropy with label smoothing, in fp32."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F

from lowbit.config.schema import CrossEntropy


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
