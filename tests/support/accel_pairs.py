"""A computation with the fast operators and with Paddle's own."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from lowbit.accel.norm_ops import fast_norm_ops


def tensor(values: np.ndarray) -> Tensor:
    return paddle.to_tensor(values.astype(np.float32), stop_gradient=False)


def both_ways(run) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What `run` returns, by Paddle and by us."""
    found = []
    for fast in (False, True):
        with fast_norm_ops(wanted=fast):
            found.append([tensor.numpy() for tensor in run()])
    return found[0], found[1]
