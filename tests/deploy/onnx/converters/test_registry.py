from __future__ import annotations

import paddle
import pytest

from lowbit.deploy.onnx.converters import operator_names
from lowbit.errors import LowbitError
from tests.support.onnx_models import Net


def test_an_unknown_operator_is_named_with_what_to_do(write):
    with pytest.raises(LowbitError, match=r'operator "pd_op.cumprod" .*has no ONNX form.*--format paddle'):
        write(Net(lambda x: paddle.cumprod(x, dim=1)), quantized=False)


def test_the_operators_of_networks_are_there():
    assert {"conv2d", "batch_norm_", "relu", "pool2d", "matmul", "hardswish"} <= set(operator_names())
