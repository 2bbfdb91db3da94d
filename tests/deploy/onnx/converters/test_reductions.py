from __future__ import annotations

import paddle
import pytest

from tests.support.onnx_models import Net


@pytest.mark.parametrize("reduce", [paddle.mean, paddle.sum, paddle.max, paddle.min])
@pytest.mark.parametrize(("axes", "keep"), [([2, 3], False), ([1], True), (-1, False)])
def test_over_axes(reduce, axes, keep, same_in_engines):
    same_in_engines(Net(lambda x: reduce(x, axes, keepdim=keep)))
