from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.errors import LowbitError
from lowbit.nn.qtensor import QTensor, SavedQTensor, with_axes_of


@pytest.mark.parametrize(
    ("lowest", "highest", "per_byte"),
    [(-8, 7, 2), (0, 15, 2), (-2, 1, 2), (0, 3, 2), (-7, 7, 2), (-16, 14, 1), (-128, 127, 1), (0, 255, 1)],
)
@pytest.mark.parametrize("shape", [[4, 3, 2, 2], [3, 5], [1]])
def test_comes_back_as_it_was(lowest, highest, per_byte, shape):
    integers = np.random.default_rng(0).integers(lowest, highest, shape, endpoint=True)
    data = paddle.to_tensor(integers.astype(np.int8 if lowest < 0 else np.uint8))
    kept = SavedQTensor(QTensor(data=data, scale=paddle.ones([1]), lowest=lowest, highest=highest))
    back = kept.operand()
    assert back.data.dtype == data.dtype and (back.lowest, back.highest) == (lowest, highest)
    np.testing.assert_array_equal(back.data.numpy(), data.numpy())
    assert kept.bytes == -(-data.size // per_byte)


def test_values_are_kept_as_they_are():
    x = paddle.randn([3, 2])
    kept = SavedQTensor(QTensor(data=x))
    assert kept.operand().data is x and kept.bytes == 24
    x.scale_(2.0)
    with pytest.raises(LowbitError, match="changed in place"):
        kept.operand()


@pytest.mark.parametrize("shape", [[], [1], [4], [3, 1], [2, 1, 4]])
def test_a_scale_with_as_many_axes_is_broadcast_as_it_was(shape):
    x, scale = paddle.randn([2, 3, 4]), paddle.rand(shape)
    found = with_axes_of(x, scale)
    assert len(found.shape) == 3 and (x * found == x * scale).all()
