"""The example in C: it compiles without warnings, classifies as Python does, and says what is wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from examples.c import build as example
from lowbit.runtime import Engine
from tests.support.qdq import mixed_network


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return example.build(tmp_path_factory.mktemp("c"))


def test_it_answers_as_python_does(program, tmp_path):
    graph = mixed_network(tmp_path / "net.onnx")
    images = graph.images(3)
    images.tofile(tmp_path / "images.f32")
    command = [program, tmp_path / "net.onnx", tmp_path / "images.f32", 3, 3, 20, 17]
    found = subprocess.run(list(map(str, command)), check=True, text=True, capture_output=True).stdout
    logits = Engine(tmp_path / "net.onnx")(images)
    expected = [f"image {n}: class {row.argmax()}, {row.max():.9g}" for n, row in enumerate(logits)]
    assert found.splitlines() == expected


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"nonsense", "damaged or no ONNX model")]
)
def test_errors(program, tmp_path, content, message):
    (tmp_path / "bad.onnx").write_bytes(content)
    np.zeros(1, np.float32).tofile(tmp_path / "images.f32")
    command = [program, tmp_path / "bad.onnx", tmp_path / "images.f32", 1, 1]
    done = subprocess.run(list(map(str, command)), check=False, text=True, capture_output=True)
    assert done.returncode == 1 and message in done.stderr
