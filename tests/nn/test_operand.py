from __future__ import annotations

import paddle
import pytest

from lowbit.nn.qtensor import with_axes_of


@pytest.mark.parametrize("shape", [[], [1], [4], [3, 1], [2, 1, 4]])
def test_a_scale_with_as_many_axes_is_broadcast_as_it_was(shape):
    x, scale = paddle.randn([2, 3, 4]), paddle.rand(shape)
    found = with_axes_of(x, scale)
    assert len(found.shape) == 3 and (x * found == x * scale).all()
