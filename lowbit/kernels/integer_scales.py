"""Which scales the operands of an integer product may have: the one table that all others are made from.

A product runs in integers if its scales are constant along what it sums over, and so come out of the sum.
The letters are those of `lowbit.numerics.Granularity`: of an activation or a gradient N is the sample and
H, W the pixel; of a weight N is the output channel and C the input channel.
"""

from __future__ import annotations

from collections.abc import Mapping

# layer type -> product -> operand -> the letters that may own a scale. A sum may be split so that each part
# has one scale: per sample (N of grad_weight), or per pixel before the kernel's taps are added (H and W of
# grad_input). Fewer letters are allowed, too: what more values share is constant along the sum all the more.
_CONVOLUTION = {
    "forward": {"input": "N", "weight": "N"},
    "grad_input": {"grad_output": "NHW", "weight": "C"},
    "grad_weight": {"grad_output": "NC", "input": "NC"},
}
INTEGER_SCALES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "Conv2D": _CONVOLUTION,
    # A transposed convolution's forward is a convolution's grad_input, and the other way round.
    "Conv2DTranspose": _CONVOLUTION
    | {
        "forward": {"input": "NHW", "weight": "N"},
        "grad_input": {"grad_output": "N", "weight": "C"},
    },
    # Linear has no taps: every row of its input is a sum of its own.
    "Linear": _CONVOLUTION | {"forward": {"input": "NHW", "weight": "N"}},
}
SUMS_OVER = {
    "forward": "the input channels and the kernel",
    "grad_input": "the output channels",
    "grad_weight": "the samples and the pixels",
}
