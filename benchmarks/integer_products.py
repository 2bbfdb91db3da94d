"""The integer products against oneDNN's fp32 ones: single layers, in turns, one thread.

The figures are how many times faster than oneDNN in fp32 (with its changes of layout, as lowbit calls it):
the median of the rounds and their spread, in processor time. Packing, scales and bias are included,
quantizing is not. NHW is the gradient with a scale per pixel, NC with one per sample and channel. What a
processor with AVX2 alone would see:

    ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/integer_products.py --variants avx2
    python benchmarks/integer_products.py --layers "3x3 64@56" --bits W4A4G4
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before Paddle's libraries are loaded

import numpy as np

from lowbit.accel.onednn import prepared
from lowbit.bench.run import take_turns
from lowbit.kernels import gemm, kernels
from lowbit.kernels.gemm import Geometry, Operand

# name: channels, outputs, side, kernel, stride
LAYERS = {
    "3x3 64@56": (64, 64, 56, 3, 1),
    "3x3 128@28": (128, 128, 28, 3, 1),
    "3x3 256@14": (256, 256, 14, 3, 1),
    "3x3 512@7": (512, 512, 7, 3, 1),
    "3x3 64-128/2@56": (64, 128, 56, 3, 2),
    "1x1 64-128/2@56": (64, 128, 56, 1, 2),
    "1x1 64-256@56": (64, 256, 56, 1, 1),
    "1x1 512-128@28": (512, 128, 28, 1, 1),
    "3x3 16@32": (16, 16, 32, 3, 1),
    "linear 512-1000": (512, 1000, 1, 1, 1),
    "depthwise 3x3 96@56": (96, 96, 56, 3, 1),
    "depthwise 3x3/2 96@56": (96, 96, 56, 3, 2),
    "depthwise 5x5 240@14": (240, 240, 14, 5, 1),
    "depthwise 5x5 576@7": (576, 576, 7, 5, 1),
}
# name: bounds of the activations, of the gradients and of the weights
BITS = {
    "W4A4G4": ((0, 15), (-8, 7), (-8, 7)),
    "W4A8G8": ((0, 255), (-128, 127), (-8, 7)),
    "W8A7G7": ((0, 127), (-64, 63), (-127, 127)),
    "W8A8G8": ((0, 255), (-128, 127), (-128, 127)),
}
PRODUCTS = ("forward", "grad_input", "grad_input NHW", "grad_weight", "grad_weight NC")
# Operands and result, as oneDNN takes them.
NAMES = {"forward": ("x", "w", "dy"), "grad_input": ("dy", "w", "x"), "grad_weight": ("x", "dy", "w")}


def geometry_of(layer: str, batch: int) -> Geometry:
    channels, outputs, side, kernel, stride = LAYERS[layer]
    return Geometry(
        input=(batch, channels, side, side),
        outputs=outputs,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(kernel // 2,) * 4,
        dilation=(1, 1),
        groups=channels if layer.startswith("depthwise") else 1,
    )


class Layer:
    """A layer's operands, in fp32 and in integers, and what runs on them."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.rng = np.random.default_rng(0)
        weight = (geometry.outputs, geometry.input[1] // geometry.groups, *geometry.kernel)
        self.shapes = {"x": geometry.input, "dy": geometry.output, "w": weight}
        self.kept: list[np.ndarray] = []  # alive, since only their addresses go on

    def room(self, name: str) -> int:
        return self.address(self.rng.standard_normal(self.shapes[name]).astype(np.float32))

    def address(self, array: np.ndarray) -> int:
        self.kept.append(array)
        return array.ctypes.data

    def operand(self, name: str, bounds: tuple[int, int], **scale: int) -> Operand:
        low, high = bounds
        values = self.rng.integers(low, high + 1, self.shapes[name]).astype(np.int8 if low < 0 else np.uint8)
        scales = np.full(values.size, 0.01, np.float32)
        return Operand(
            integers=self.address(values), lowest=low, highest=high, scale=self.address(scales), **scale
        )

    def fp32(self, product: str) -> Callable[[], None]:
        addresses = [self.room(name) for name in NAMES[product.split()[0]]]
        run = getattr(prepared(self.geometry), product.split()[0])
        return lambda: run(*addresses)

    def integer(self, product: str, variant: str, bits: str) -> Callable[[], None]:
        activation, gradient, weight = BITS[bits]
        if product == "forward":
            operands = [self.operand("x", activation, of_n=1), self.operand("w", weight, of_n=1)]
            result = self.room("dy")
        elif product.startswith("grad_weight"):
            by = {"of_n": self.geometry.outputs, "of_c": 1} if "NC" in product else {}
            operands = [self.operand("dy", gradient, **by), self.operand("x", activation)]
            result = self.room("w")
        else:
            height, width = self.shapes["dy"][2:]
            by = {"of_n": height * width, "of_pixel": 1} if "NHW" in product else {"of_n": 1}
            operands = [self.operand("dy", gradient, **by), self.operand("w", weight, of_c=1)]
            result = self.room("x")
        run = getattr(gemm, product.split()[0])

        def turn() -> None:
            kernels().select_variant(variant)
            run(self.geometry, *operands, result)

        return turn


def measure(layer: Layer, product: str, sides: list[tuple[str, str]], rounds: int) -> None:
    turns = {"fp32": layer.fp32(product)}
    turns |= {f"{bits} {variant}": layer.integer(product, variant, bits) for variant, bits in sides}
    times = take_turns(turns, rounds, clock=time.thread_time)
    print(f"  {product}: fp32 {statistics.median(times['fp32']) * 1e3:.2f} ms")
    for name in list(turns)[1:]:
        faster = [fp32 / integer for fp32, integer in zip(times["fp32"], times[name], strict=True)]
        spread = f"from {min(faster):.2f} to {max(faster):.2f}"
        took = f"{statistics.median(times[name]) * 1e3:.2f} ms"
        print(f"    {name:20} {statistics.median(faster):5.2f}x  ({spread}), {took}", flush=True)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--variants", nargs="+", default=[kernels().variant], choices=kernels().variants)
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), choices=LAYERS)
    parser.add_argument("--bits", nargs="+", default=list(BITS), choices=BITS)
    parser.add_argument("--products", nargs="+", default=PRODUCTS, choices=PRODUCTS)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    sides = [(variant, bits) for variant in options.variants for bits in options.bits]
    for name in options.layers:
        print(f"{name}, batch {options.batch}")
        for product in options.products:
            measure(Layer(geometry_of(name, options.batch)), product, sides, options.rounds)


if __name__ == "__main__":
    main()
