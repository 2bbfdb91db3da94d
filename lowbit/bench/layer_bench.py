"""Single layers: their three products against oneDNN's fp32, and what the instructions allow."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import paddle
from paddle import Tensor, nn

from lowbit.accel.convolutions import fast_convolutions
from lowbit.bench.sides import RECIPES
from lowbit.kernels import kernels
from lowbit.kernels.gemm import Geometry, Operand, multiplications
from lowbit.nn.quant_layers import quantize_layer
from lowbit.recipe import Plan, load_recipe

_BITS = {"oneDNN fp32": 32, "W8A8G8": 8, "W4A4G4": 4, "W4A4G4 fast": 4}  # of the products
_TURNS, _TRIES = 200_000, 5


@cache
def ceilings() -> dict[str, float]:
    """Multiply-adds a second of one thread, by side; none without kernels that are more than portable."""
    found = kernels()
    if found is None:
        return {}
    function = found.library.lowbit_ceiling
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int32, ctypes.c_int64]
    speeds = {name: _speed(function, bits) for name, bits in _BITS.items()}
    return {name: speed for name, speed in speeds.items() if speed}


def _speed(function: Any, bits: int) -> float:
    best = 0.0
    for _ in range(_TRIES):
        start = time.perf_counter()
        done = function(bits, _TURNS) * _TURNS
        best = max(best, done / (time.perf_counter() - start))
    return best


# The training step of one convolution: oneDNN in fp32 against integers.


FP32 = "oneDNN fp32"  # what the others are compared with


@dataclass(frozen=True)
class LayerCase:
    """A 3x3 convolution of as many outputs as inputs.

    >>> LayerCase(64, 56).multiplications(batch=16) == 3 * 16 * 56 * 56 * 64 * 64 * 9
    True
    """

    channels: int
    side: int

    def __str__(self) -> str:
        return f"3x3, {self.channels} channels, {self.side}²"

    def multiplications(self, batch: int, *, of_bytes: bool = False) -> int:
        """Of the three products together; of 8-bit integers there may be fewer, by Winograd's transforms."""
        if not of_bytes or kernels() is None:
            return 3 * batch * self.side**2 * self.channels**2 * 9
        x = Operand(integers=0, lowest=0, highest=255)
        w = dy = Operand(integers=0, lowest=-128, highest=127)
        geometry = Geometry(
            input=(batch, self.channels, self.side, self.side),
            outputs=self.channels,
            kernel=(3, 3),
            stride=(1, 1),
            padding=(1, 1, 1, 1),
            dilation=(1, 1),
            groups=1,
        )
        operands = {"forward": (x, w), "grad_input": (dy, w), "grad_weight": (dy, x)}
        return sum(multiplications(geometry, product, *two) for product, two in operands.items())


LAYERS = (LayerCase(64, 56), LayerCase(128, 28), LayerCase(256, 14), LayerCase(512, 7))


def layer_sides(case: LayerCase, batch: int) -> dict[str, Callable[[], None]]:
    """A function for every side that computes Y, dX and dW of one batch."""
    paddle.seed(0)
    x = paddle.nn.functional.relu(paddle.randn([batch, case.channels, case.side, case.side]))
    dy = paddle.randn(x.shape)
    x.stop_gradient = False
    sides = {FP32: _step(_layer(case), x, dy)}
    for name in ("W8A8G8", "W4A4G4", "W4A4G4 fast"):
        layer = quantize_layer(_layer(case), _plan(name), name=str(case))
        sides[name] = _step(layer, x, dy)
    return sides


def _layer(case: LayerCase) -> nn.Conv2D:
    return nn.Conv2D(case.channels, case.channels, 3, padding=1, bias_attr=False)


def _plan(name: str) -> Plan:
    """What the recipe says of a layer in the middle of a model."""
    three = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))
    return load_recipe(RECIPES[name]).plans(three)["1"]


def _step(layer: nn.Layer, x: Tensor, dy: Tensor) -> Callable[[], None]:
    def step() -> None:
        with fast_convolutions():
            paddle.autograd.backward([layer(x)], [dy])
        layer.weight.clear_gradient(False)
        x.clear_gradient(False)

    return step
