"""Targets: where an ONNX file will run, and how integers are stored so that products are exact there."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from lowbit.deploy.onnx.graph import QuantizedConstant
from lowbit.errors import LowbitError, did_you_mean
from lowbit.machine import CpuInfo, cpu_info
from lowbit.nn import DeployedOperand

Target = Literal["avx2", "vnni", "arm", "gpu"]
TARGETS: tuple[Target, ...] = get_args(Target)
_MEANING = {
    "avx2": "x86 processors without VNNI",
    "vnni": "x86 processors with VNNI",
    "arm": "64-bit Arm processors",
    "gpu": "GPUs with TensorRT",
}

_SIGNED_AND_NOT = "inputs as int8, and as uint8 where never negative"
_INPUTS = {
    "avx2": "inputs as uint8, with zero point 128 where signed",
    "vnni": _SIGNED_AND_NOT,
    "arm": _SIGNED_AND_NOT,
    "gpu": "inputs as int8",
}


def resolve_target(word: str | None, cpu: CpuInfo | None = None) -> Target:
    """The target of a word; without one, this machine (or the processor that LOWBIT_CPU names).

    >>> resolve_target("gpu")
    'gpu'
    """
    if word is not None:
        if word not in TARGETS:
            raise LowbitError(f'unknown target "{word}": {did_you_mean(word, TARGETS)}')
        return word
    cpu = cpu or cpu_info()
    if cpu.architecture.lower() in ("aarch64", "arm64"):
        return "arm"
    # Products that saturate are the worse mistake: what is not known to have VNNI is written for AVX2.
    return "vnni" if cpu.has_vnni else "avx2"


_WITH_EDGES = "inputs and all tensors between layers as {}"


def describe_form(
    target: Target, weights: list[QuantizedConstant], inputs: list[DeployedOperand], *, edges: bool = False
) -> str:
    """One line that says how integers are stored, and why."""
    kinds = []
    for bits in sorted({weight.bits for weight in weights}, reverse=True):
        stored = [weight_type(weight, target) for weight in weights if weight.bits == bits]
        kinds += [f"{bits}-bit weights as {' and '.join(sorted({name for name, _ in stored}))}"]
        if any(zero for _, zero in stored):
            kinds[-1] += (
                " with zero point 128 (exact: 8-bit products of u8 and s8 saturate there; OpenVINO is slow "
                "with them, 7-bit weights are fast)"
            )
    if edges:
        kinds.append(_WITH_EDGES.format("int8" if target == "gpu" else "uint8"))
    elif inputs:
        kinds.append(_INPUTS[target])
    return f"for {_MEANING[target]} ({target}): {', '.join(kinds)}"


def weight_type(weight: QuantizedConstant, target: Target) -> tuple[str, int]:
    """The ONNX type of a weight's integers and the zero point that is added to them.

    An AVX2 processor adds two products of u8 and s8 in 16 bits, which saturate with 8-bit weights; engines
    have another, exact way for two unsigned operands.
    """
    sign = "" if weight.signed else "u"
    if is_packed(weight):
        return f"{sign}int4", 0
    if target == "avx2" and weight.bits == 8 and weight.signed:
        return "uint8", 128
    return f"{sign}int8", 0


def is_packed(weight: QuantizedConstant) -> bool:
    """Whether two integers share a byte.

    Not in matrices [in, out] with an odd number of inputs, which OpenVINO 2026.4 unpacks wrongly.
    """
    return weight.bits <= 4 and not (len(weight.shape) == 2 and weight.shape[0] % 2)


def activation_type(
    operand: DeployedOperand,
    target: Target,
    *,
    positive: bool,
    direct: bool,
    layer: str,
    edges: bool = False,
    bent: bool = False,
    joined: bool = False,
) -> tuple[str, int]:
    """The ONNX type of an input's integers and the zero point that is added to them.

    Behind a ReLU (`positive`) also a signed grid is stored unsigned: ONNX Runtime then merges the ReLU into
    the product. On x86 it turns int8 into uint8 by itself, but makes an invalid graph of opset 21 where the
    product is not the next operator (not `direct`): there it is stored so from the beginning. For products
    with int8 inputs OpenVINO halves and rounds the weights without VNNI: on `avx2` no input is int8. With
    `edges` all tensors have one type, since ONNX Runtime adds two of the same type in integers only; but one
    that only activations read (`bent`) has no zero point, since OpenVINO merges the activation into the
    product then. Behind a concatenation (`joined`) OpenVINO 2026.4 computes wrong sums of convolutions with
    int8 inputs.
    """
    if operand.zero_point and target != "gpu":  # LSQ+: what is clipped there is clipped by the type
        return "uint8", operand.zero_point
    if bent and operand.signed and not positive:
        return "int8", 0
    if target != "gpu" and (positive or not operand.signed):
        return "uint8", 0
    if target == "avx2" or (edges and target != "gpu") or (target == "vnni" and (joined or not direct)):
        return "uint8", 128
    if target != "gpu":
        return "int8", 0
    if operand.highest > np.iinfo(np.int8).max:
        raise LowbitError(
            f'the input of layer "{layer}" is on the grid uint8, and GPU engines know signed inputs without '
            "a zero point only: train with `sign: fixed` for inputs, with 7 bits, or export for another "
            "target"
        )
    return "int8", 0
