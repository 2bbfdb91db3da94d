"""Layers in all the ways they can be built, quantized."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn

from lowbit.nn import (
    quantize_layer,
)
from lowbit.recipe import Forward, Plan, TensorSpec

CONVS = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 1), "stride": (2, 1), "padding": [1, 0]},
    {"kernel_size": 3, "padding": [1, 2, 0, 1]},
    {"kernel_size": 3, "padding": [[0, 0], [0, 0], [1, 2], [2, 1]]},
    {"kernel_size": 3, "padding": "SAME", "stride": 2},
    {"kernel_size": 3, "padding": "VALID"},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": 3, "groups": 2},
    {"kernel_size": 3, "groups": 4, "padding": 1},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "replicate", "bias_attr": False},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    {"kernel_size": 3, "padding": "SAME", "data_format": "NHWC"},
]
TRANSPOSED = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": "SAME"},
    {"kernel_size": 3, "groups": 2, "dilation": 2},
    {"kernel_size": 2, "stride": 2, "data_format": "NHWC", "bias_attr": False},
]


PLAN = {
    "learned": Plan(
        forward=Forward(
            input=TensorSpec(grid="int4", scaling="learned"),
            weight=TensorSpec(grid="int4", granularity="N", scaling="learned"),
        )
    ),
    "pact": Plan(
        forward=Forward(
            input=TensorSpec(grid="int8", scaling="moving_average", clip="pact"),
            weight=TensorSpec(grid="int8-narrow", granularity="N"),
        )
    ),
    "per-tensor": Plan(
        forward=Forward(
            input=TensorSpec(grid="uint3", scaling="moving_average"), weight=TensorSpec(grid="int2")
        )
    ),
    "per-sample": Plan(
        forward=Forward(
            input=TensorSpec(grid="int8", granularity="N"), weight=TensorSpec(grid="int8", granularity="N")
        )
    ),
}
LAYERS = {
    "conv": lambda: nn.Conv2D(4, 6, 3, padding=1),
    "depthwise": lambda: nn.Conv2D(4, 4, 3, groups=4, stride=2, bias_attr=False),
    "groups": lambda: nn.Conv2D(4, 6, 1, groups=2),
    "reflect": lambda: nn.Conv2D(4, 6, 3, padding=1, padding_mode="reflect"),
    "nhwc": lambda: nn.Conv2D(4, 6, 3, data_format="NHWC"),
    "transpose": lambda: nn.Conv2DTranspose(4, 6, 3, stride=2),
    "transpose-groups": lambda: nn.Conv2DTranspose(4, 6, 3, groups=2),
    "linear": lambda: nn.Linear(5, 6),
}


def inputs(kind: str) -> paddle.Tensor:
    shape = {"linear": [3, 5], "nhwc": [3, 7, 7, 4]}.get(kind, [3, 4, 7, 7])
    return paddle.to_tensor(np.random.default_rng(1).standard_normal(shape, dtype=np.float32))


def seen(kind: str, plan: str) -> nn.Layer:
    paddle.seed(3)
    layer = quantize_layer(LAYERS[kind](), PLAN[plan], name=kind)
    layer.train()
    layer(inputs(kind))
    return layer
