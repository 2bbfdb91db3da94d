"""How fast the weight's gradient is in integers, against oneDNN's in fp32, layer by layer.

One thread, in turns. oneDNN uses the best instruction set of the machine; to see what a machine with AVX2 alone
would have, start with ONEDNN_MAX_CPU_ISA=AVX2 and look at the variant avx2.

python -m benchmarks.integer_grad_weight --rounds 15 --variants avx2 avx512vnni
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import numpy as np

from benchmarks.turns import take_turns
from lowbit.kernels import kernels
from lowbit.kernels.onednn import Geometry, prepared
from lowbit.kernels.products import Operand, grad_weight

LAYERS = {"64@56": (64, 56), "128@28": (128, 28), "256@14": (256, 14), "512@7": (512, 7)}
# Bounds of dy and x.
FORMATS = {
    "4 bit": ((-8, 7), (0, 15)),
    "4 bit, log-scale dy": ((-64, 64), (0, 15)),
    "8 bit": ((-128, 127), (0, 255)),
    "8 bit, 7-bit x": ((-128, 127), (0, 127)),
}


def geometry_of(channels: int, size: int, batch: int, kernel: int, groups: int = 1) -> Geometry:
    return Geometry(
        input=(batch, channels, size, size), outputs=channels, kernel=(kernel, kernel), stride=(1, 1),
        padding=(kernel // 2,) * 4, dilation=(1, 1), groups=groups,
    )  # fmt: skip


def select_and_run(variant: str, work: partial) -> None:
    kernels().select_variant(variant)
    work()


def measure(geometry: Geometry, bounds: tuple, variants: list[str], by_sample: bool, rounds: int) -> dict:
    """Milliseconds of each side, and how many times faster than oneDNN it is."""
    rng = np.random.default_rng(0)
    integers = [
        rng.integers(low, high + 1, shape).astype(np.int8 if low < 0 else np.uint8)
        for (low, high), shape in zip(bounds, (geometry.output, geometry.input), strict=True)
    ]
    dy, x = (array.astype(np.float32) for array in integers)
    dw = np.empty(geometry.weight, np.float32)
    per = geometry.output[:2] if by_sample else (1, 1)
    scale_dy, scale_x = np.full(per, 0.01, np.float32), np.full(1, 0.01, np.float32)
    strides = (per[1], 1) if by_sample else (0, 0)
    operands = (
        Operand(integers[0].ctypes.data, *bounds[0], scale_dy.ctypes.data, *strides),
        Operand(integers[1].ctypes.data, *bounds[1], scale_x.ctypes.data),
    )
    fp32 = partial(prepared(geometry).grad_weight, x.ctypes.data, dy.ctypes.data, dw.ctypes.data)
    sides = {"fp32": fp32}
    for variant in variants:
        work = partial(grad_weight, geometry, *operands, dw.ctypes.data)
        sides[variant] = partial(select_and_run, variant, work)
    # The time of this thread, not of the clock on the wall: others may use the machine.
    times = take_turns(sides, rounds, clock=time.thread_time)
    speed = {
        name: statistics.median(a / b for a, b in zip(times["fp32"], times[name], strict=True)) for name in times
    }
    return {name: (1e3 * statistics.median(times[name]), speed[name]) for name in times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--kernel", type=int, default=3)
    parser.add_argument("--depthwise", action="store_true")
    parser.add_argument("--variants", nargs="*", default=kernels().variants)
    options = parser.parse_args()
    before = kernels().variant
    for format_name, bounds in FORMATS.items():
        for by_sample in (False, True):
            print(f"{format_name}, {'a scale per sample and output' if by_sample else 'one scale'}")
            for layer, (channels, size) in LAYERS.items():
                groups = channels if options.depthwise else 1
                geometry = geometry_of(channels, size, options.batch, options.kernel, groups)
                found = measure(geometry, bounds, options.variants, by_sample, options.rounds)
                sides = (f"{name} {ms:.2f} ms {times:.2f}x" for name, (ms, times) in found.items())
                print(f"  {layer:7} {'   '.join(sides)}", flush=True)
    kernels().select_variant(before)


if __name__ == "__main__":
    main()
