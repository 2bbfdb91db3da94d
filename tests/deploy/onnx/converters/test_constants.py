from __future__ import annotations

import paddle

from tests.support.onnx_models import Net


def test_constants_like_a_tensor(same_in_engines):
    same_in_engines(Net(lambda x: x * paddle.full_like(x, 0.5) + paddle.ones([8])))


def test_casts(same_in_engines):
    same_in_engines(Net(lambda x: (x * 3.0).cast("int32").cast("float32") + x))
