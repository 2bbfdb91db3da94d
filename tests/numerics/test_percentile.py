from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.errors import LowbitError
from lowbit.numerics import parse_grid, parse_observer
from tests.numerics import twin
from tests.numerics.twin import F32

INT8 = parse_grid("int8")
NOT_ZERO = st.floats(2**-20, 100, width=32) | st.floats(-100, -(2**-20), width=32)


@given(
    x=arrays(F32, st.integers(1, 300), elements=NOT_ZERO),
    percent=st.sampled_from(["50", "66.6", "99", "99.9", "99.99", "100"]),
)
@settings(max_examples=100)
def test_equals_the_twin(x, percent):
    found = parse_observer(f"percentile({percent})").range(paddle.to_tensor(x), INT8, (0,))
    assert found.item() == twin.percentile(np.abs(x), percent)


def test_the_rank_is_exact():
    x = paddle.arange(1, 1001, dtype="float32")
    assert parse_observer("percentile(99.9)").range(x, INT8, (0,)).item() == 999
    assert parse_observer("percentile(100)").range(x, INT8, (0,)).item() == 1000


def test_mostly_zeros():
    x = np.zeros((2, 1000), F32)
    x[0, 3] = 5
    found = parse_observer("percentile(90)")(paddle.to_tensor(x), INT8, (1,)).numpy()
    assert found[0, 0] == F32(5) / F32(127) and found[1, 0] == 1


class _Observes(paddle.nn.Layer):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.observer = parse_observer(word)

    def forward(self, x):
        return self.observer(x, INT8, (0, 1))


@pytest.mark.parametrize("word", ["percentile", "kl", "mse(2)"])
def test_it_is_for_calibration(word):
    spec = [paddle.static.InputSpec([None, 2], "float32")]
    net = paddle.jit.to_static(_Observes(word), input_spec=spec, full_graph=True)
    name = word.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(LowbitError, match=f"the observer {name} is for calibration"):
        net(paddle.ones([1, 2]))
