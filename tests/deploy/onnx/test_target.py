from __future__ import annotations

import numpy as np
import pytest

from lowbit.deploy.onnx.graph import QuantizedConstant
from lowbit.deploy.onnx.qdq import activation_type, describe_form, resolve_target, weight_type
from lowbit.errors import LowbitError
from lowbit.machine.cpu import PROCESSORS, CpuInfo
from lowbit.nn import DeployedOperand


def cpu(architecture: str, *features: str) -> CpuInfo:
    known = frozenset(features)
    return CpuInfo(
        vendor="", model="", cores=1, machine_cores=1, memory=1, features=known, architecture=architecture
    )


def weight(bits: int, signed: bool = True) -> QuantizedConstant:
    return QuantizedConstant(np.zeros([1, 1], np.int16), np.ones([1, 1], np.float32), bits, signed)


def operand(bits: int, signed: bool) -> DeployedOperand:
    highest = (1 << (bits - signed)) - 1
    return DeployedOperand(
        lowest=-highest if signed else 0, highest=highest, bits=bits, signed=signed, scale=np.float32(1)
    )


@pytest.mark.parametrize(
    ("features", "machine", "expected"),
    [
        (["avx2"], "x86_64", "avx2"),
        (["avx2", "avx512f"], "x86_64", "avx2"),
        (["avx2", "avx_vnni"], "x86_64", "vnni"),
        (["avx2", "avx512_vnni"], "AMD64", "vnni"),
        (["asimd"], "aarch64", "arm"),
        ([], "arm64", "arm"),
    ],
)
def test_this_machine(features, machine, expected):
    assert resolve_target(None, cpu(machine, *features)) == expected


@pytest.mark.parametrize("name", PROCESSORS)
def test_another_processor(name, monkeypatch):
    monkeypatch.setenv("LOWBIT_CPU", name)
    assert resolve_target(None) == ("avx2" if name.endswith("-avx2") else "vnni")


def test_a_misspelt_target():
    with pytest.raises(LowbitError, match='did you mean "vnni"'):
        resolve_target("vnn")


@pytest.mark.parametrize("target", ["avx2", "vnni", "arm", "gpu"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_products_never_saturate(target, bits):
    kind, zero = weight_type(weight(bits), target)
    if target == "avx2" and kind == "int8":  # two products of u8 and s8 in 16 bits
        assert 2 * 255 * (1 << (bits - 1)) <= 2**15
    assert (kind, zero) in {("int4", 0), ("int8", 0), ("uint8", 128)}
    assert kind.endswith("4") is (bits <= 4)


@pytest.mark.parametrize(
    ("target", "signed", "positive", "direct", "expected"),
    [
        ("vnni", True, False, True, ("int8", 0)),
        ("vnni", True, True, True, ("uint8", 0)),
        ("vnni", False, True, False, ("uint8", 0)),
        ("vnni", True, False, False, ("uint8", 128)),
        ("avx2", True, False, False, ("uint8", 128)),
        ("avx2", True, False, True, ("uint8", 128)),
        ("arm", True, False, False, ("int8", 0)),
        ("gpu", True, True, True, ("int8", 0)),
        ("gpu", False, True, True, ("int8", 0)),
    ],
)
def test_inputs(target, signed, positive, direct, expected):
    found = activation_type(operand(7, signed), target, positive=positive, direct=direct, layer="")
    assert found == expected


def test_gpus_know_signed_inputs_only():
    with pytest.raises(LowbitError, match=r'layer "conv" is on the grid uint8.*sign: fixed'):
        activation_type(operand(8, False), "gpu", positive=True, direct=True, layer="conv")


def test_the_form_in_words():
    text = describe_form("avx2", [weight(8), weight(4)], [operand(8, True)])
    assert "8-bit weights as uint8 with zero point 128" in text
    assert "4-bit weights as int4" in text
