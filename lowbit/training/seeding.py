"""Random numbers drawn by (seed, step, rank), so that a resumed run draws what an undisturbed one would."""

from __future__ import annotations

import random

import numpy as np
import paddle


def seed_everything(*key: int) -> None:
    """Seeds Paddle's, NumPy's and Python's generators from a key such as (seed, step, rank).

    Paddle's CPU generator cannot be saved and restored; seeding it anew at each step makes its state a
    function of the step, which the checkpoint holds. Dropout is what draws from it.
    """
    first, second = np.random.SeedSequence(key).generate_state(2, np.uint64)
    paddle.seed(int(first >> np.uint64(1)))
    random.seed(int(second))
    np.random.seed(int(second & np.uint64(0xFFFFFFFF)))
