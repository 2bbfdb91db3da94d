"""Where the file will run, and how integers are stored there so that products come out exact and fast."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from lowbit.deploy.onnx.graph import QuantizedConstant
from lowbit.errors import LowbitError, did_you_mean
from lowbit.layers import DeployedOperand
from lowbit.machine import CpuInfo, cpu_info

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


def describe_form(target: Target, weights: list[QuantizedConstant], inputs: list[DeployedOperand]) -> str:
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
    if inputs:
        kinds.append(_INPUTS[target])
    return f"for {_MEANING[target]} ({target}): {', '.join(kinds)}"


def weight_type(weight: QuantizedConstant, target: Target) -> tuple[str, int]:
    """The ONNX type of a weight's integers and the zero point that is added to them.

    An AVX2 processor adds two products of u8 and s8 in 16 bits, which saturate with 8-bit weights; engines
    have another, exact way for two unsigned operands.
    """
    sign = "" if weight.signed else "u"
    if weight.bits <= 4:
        return f"{sign}int4", 0
    if target == "avx2" and weight.bits == 8 and weight.signed:
        return "uint8", 128
    return f"{sign}int8", 0


def activation_type(
    operand: DeployedOperand, target: Target, *, positive: bool, direct: bool, layer: str
) -> tuple[str, int]:
    """The ONNX type of an input's integers and the zero point that is added to them.

    Behind a ReLU (`positive`) also a signed grid is stored unsigned: ONNX Runtime then merges the ReLU into
    the product. On x86 it turns int8 into uint8 by itself, but makes an invalid graph of opset 21 where the
    product is not the next operator (not `direct`): there it is stored so from the beginning. For products
    with int8 inputs OpenVINO halves and rounds the weights without VNNI: on `avx2` no input is int8.
    """
    if target != "gpu" and (positive or not operand.signed):
        return "uint8", 0
    if target == "avx2" or (target == "vnni" and not direct):
        return "uint8", 128
    if target != "gpu":
        return "int8", 0
    if not operand.signed and operand.highest > np.iinfo(np.int8).max:
        raise LowbitError(
            f'the input of layer "{layer}" is on the grid uint8, and GPU engines know signed inputs only: '
            "train with `sign: fixed` for inputs, with 7 bits, or export for another target"
        )
    return "int8", 0
