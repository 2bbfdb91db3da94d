"""Which products can run in integers: those whose scales are constant along what they sum over."""

from __future__ import annotations

from collections.abc import Mapping

from lowbit.recipe.spec import TensorSpec

# The letters that may own a scale, per operand. A sum may be split so that each part has one scale: per
# sample (N of grad_weight), or per pixel before the kernel's taps are added (H and W of grad_input). A scale
# that is shared by more values than these letters say is constant along the sum all the more.
_CONVOLUTION = {
    "forward": {"input": "N", "weight": "N"},
    "grad_input": {"grad_output": "NHW", "weight": "C"},
    "grad_weight": {"grad_output": "NC", "input": "NC"},
}
# A transposed convolution's forward is a convolution's grad_input, and the other way round.
_TRANSPOSED = _CONVOLUTION | {
    "forward": {"input": "NHW", "weight": "N"},
    "grad_input": {"grad_output": "N", "weight": "C"},
}
# Linear has no taps: every row of its input is a sum of its own.
_LINEAR = _CONVOLUTION | {"forward": {"input": "NHW", "weight": "N"}}

_LETTERS = {"Conv2D": _CONVOLUTION, "Conv2DTranspose": _TRANSPOSED, "Linear": _LINEAR}
_SIGNED_BYTE, _BYTE = 127, 255
_SUMS_OVER = {
    "forward": "the input channels and the kernel",
    "grad_input": "the output channels",
    "grad_weight": "the samples and the pixels",
}


def why_not_in_integers(layer_type: str, product: str, operands: Mapping[str, TensorSpec]) -> str | None:
    """The reason why a product cannot run in integers, or None when it can.

    >>> x, w = TensorSpec(grid="int8"), TensorSpec(grid="int8", granularity="C")
    >>> why_not_in_integers("Conv2D", "forward", {"input": x, "weight": w})
    'weight has scales per C, but forward sums over the input channels and the kernel; it may have them per N'
    """
    for operand, spec in operands.items():
        if not spec.grid.is_integer:
            return f"{operand} is on the grid {spec.grid}"
        if spec.rotation:
            return f"{operand} is rotated, and what is turned back is on no grid"
        if spec.samples * spec.grid.highest > (_SIGNED_BYTE if spec.grid.signed else _BYTE):
            return f"the sum of {spec.samples} samples of {operand} on the grid {spec.grid} leaves a byte"
    for operand, spec in operands.items():
        allowed = _LETTERS[layer_type][product][operand]
        if not set(spec.granularity.letters) <= set(allowed):
            return (
                f"{operand} has scales per {spec.granularity}, "
                f"but {product} sums over {_SUMS_OVER[product]}; it may have them per {allowed}"
            )
    return None
