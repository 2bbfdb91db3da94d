"""Whether an answer is right: one definition for training, evaluation and every engine."""

from __future__ import annotations

import numpy as np


def topk_hits(logits: np.ndarray, labels: np.ndarray, topk: tuple[int, ...]) -> np.ndarray:
    """How many samples have their label among the k highest logits, for each k.

    Of equal logits the one with the lower index comes first, so that a dead network, whose outputs are all
    equal, is right as often as chance has it and not always.

    >>> topk_hits(np.array([[0.1, 0.7, 0.2]]), np.array([2]), (1, 2))
    array([0., 1.])
    """
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    # `not <=` instead of `>`: a NaN counts as above everything, so a broken output is never a hit.
    above = ~(logits <= own)
    tied_before = (logits == own) & (np.arange(logits.shape[1]) < labels[:, None])
    place = (above | tied_before).sum(axis=1)
    return np.array([(place < k).sum() for k in topk], np.float64)
