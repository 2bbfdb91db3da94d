"""Where bounds start; what calibration as a whole sees is in test_quantizer.py and test_calibrate.py."""

from __future__ import annotations

import numpy as np
import paddle

from lowbit.nn import scale_state
from lowbit.nn.scale_state import initial_alpha
from lowbit.numerics import pact_initial_alpha, parse_grid


def test_the_sample_of_a_large_tensor_is_every_nth_value_in_memory_that_the_kernel_reads(monkeypatch):
    values = np.random.default_rng(0).standard_normal((2, 4, 256, 256)).astype(np.float32)
    seen = []

    def keep(x, grid, axes):
        seen.append(x)
        return pact_initial_alpha(x, grid, axes)

    monkeypatch.setattr(scale_state, "pact_initial_alpha", keep)
    found = initial_alpha(paddle.to_tensor(values), parse_grid("int8"), (0, 1, 2, 3))
    (sample,) = seen
    assert sample.is_contiguous()
    assert (sample.numpy() == values.ravel()[::5]).all()
    assert found.item() == pact_initial_alpha(sample, parse_grid("int8"), (0,)).item()
