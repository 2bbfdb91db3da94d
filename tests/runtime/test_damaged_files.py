"""Files that are cut, changed or nonsense raise an error, or compute something; they never crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from lowbit.errors import LowbitError
from lowbit.runtime import Engine
from tests.support.qdq import mixed_network

CHANGES = 400  # of single places; each opens and runs a file


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    mixed_network(path, batch=1)
    return path.read_bytes()


def outcome(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    try:
        engine = Engine(path)
        shapes = [[size or 1 for size in shape] for shape in engine.input_shapes]
        if any(np.prod(shape) > 1e6 for shape in shapes):
            return "large"
        engine.run_all([np.zeros(s, t) for s, t in zip(shapes, engine.input_types, strict=True)])
    except (LowbitError, MemoryError):
        return "refused"
    return "ran"


def test_cut_files(content, tmp_path):
    places = np.linspace(0, len(content) - 1, CHANGES, dtype=int)
    outcomes = [outcome(tmp_path / "cut.onnx", content[:place]) for place in places]
    assert outcomes.count("refused") >= 0.9 * CHANGES


def test_changed_bytes(content, tmp_path):
    rng = np.random.default_rng(0)
    outcomes = []
    for _ in range(CHANGES):
        changed = bytearray(content)
        for place in rng.integers(0, len(content), rng.integers(1, 4)):
            changed[place] = rng.integers(0, 256)
        outcomes.append(outcome(tmp_path / "changed.onnx", bytes(changed)))
    assert "refused" in outcomes and "ran" in outcomes


def test_changed_attributes_and_sizes(content, tmp_path):
    """Valid files with numbers that make no sense."""
    rng = np.random.default_rng(1)
    numbers = [0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63)]
    for _ in range(CHANGES // 2):
        model = onnx.load_from_string(content)
        with_numbers = [
            a
            for node in model.graph.node
            for a in node.attribute
            if a.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
        ]
        for attribute in rng.choice(np.array(with_numbers, object), 2):
            value = int(rng.choice(np.array(numbers, object)))
            if attribute.type == onnx.AttributeProto.INT:
                attribute.i = value
            elif attribute.ints:
                attribute.ints[int(rng.integers(len(attribute.ints)))] = value
        node = model.graph.node[int(rng.integers(len(model.graph.node)))]
        if rng.random() < 0.3 and node.input:
            node.input[int(rng.integers(len(node.input)))] = ""
        outcome(tmp_path / "odd.onnx", model.SerializeToString())


@pytest.mark.parametrize("nonsense", [b"", b"\x00", b"x" * 1000, b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x00"])
def test_nonsense(nonsense, tmp_path):
    assert outcome(tmp_path / "nonsense.onnx", nonsense) == "refused"
