from __future__ import annotations

import paddle.nn.functional as F
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from tests.support.onnx_models import Net


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernel=st.integers(2, 3),
    stride=st.integers(1, 3),
    padding=st.sampled_from([0, 1, [1, 0], [0, 1, 1, 0]]),
    ceil=st.booleans(),
    exclusive=st.booleans(),
    size=st.integers(6, 9),
)
def test_windows(same_in_engines, kernel, stride, padding, ceil, exclusive, size):
    def both(x):
        average = F.avg_pool2d(x, kernel, stride, padding, ceil_mode=ceil, exclusive=exclusive)
        return average + F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil)

    try:
        same_in_engines(Net(both), (2, size, size))
    except LowbitError as error:  # a window outside of the image, which Paddle computes as it likes
        assert "windows that lie outside" in str(error)


@pytest.mark.parametrize("size", [1, 4, [4, 2], 3, 10])
def test_adaptive_means(size, same_in_engines):
    same_in_engines(Net(lambda x: F.adaptive_avg_pool2d(x, size)))


@pytest.mark.parametrize("size", [1, 4])
def test_adaptive_maxima(size, same_in_engines):
    same_in_engines(Net(lambda x: F.adaptive_max_pool2d(x, size)))


def test_adaptive_maxima_over_uneven_windows(write):
    with pytest.raises(LowbitError, match="windows of different sizes"):
        write(Net(lambda x: F.adaptive_max_pool2d(x, 3)), quantized=False)
