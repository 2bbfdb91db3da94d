"""Engine: batches, errors, intermediate tensors, threads, and what it needs."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import lowbit
from lowbit.errors import LowbitError
from lowbit.runtime.reference import run_reference
from tests.support.qdq import QdqGraph, mixed_network


@pytest.fixture
def network(tmp_path: Path) -> tuple[Path, QdqGraph]:
    graph = mixed_network(tmp_path / "net.onnx")
    return tmp_path / "net.onnx", graph


def test_batches_of_any_size_in_any_order(network):
    path, graph = network
    engine, images = lowbit.Engine(path), graph.images(12)
    expected = engine(images)
    for size in (1, 5, 12, 2, 3, 4, 6, 7, 8, 9, 1):
        np.testing.assert_array_equal(engine(images[:size]), expected[:size])


def test_tensors_on_the_way(network):
    path, graph = network
    images = graph.images(2)
    names = [node.output[0] for node in graph.nodes if node.op_type in ("QuantizeLinear", "Conv")]
    found = lowbit.Engine(path).run_with([images], names)
    expected = run_reference(path, {"x": images}, names)
    assert list(found) == names
    for name in names:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_several_threads_may_use_one_engine(network):
    path, graph = network
    engine, images = lowbit.Engine(path, threads=2), graph.images(4)
    expected, wrong = engine(images), []

    def work() -> None:
        for size in (1, 2, 3, 4) * 5:
            if not np.array_equal(engine(images[:size]), expected[:size]):
                wrong.append(size)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_errors_say_what_does_not_fit(network, tmp_path):
    path, graph = network
    engine, images = lowbit.Engine(path), graph.images()
    with pytest.raises(LowbitError, match=r"takes 1 inputs \(x\), got 2"):
        engine(images, images)
    with pytest.raises(LowbitError, match='input "x" is float32, got float64'):
        engine(images.astype(np.float64))
    with pytest.raises(LowbitError, match=r"has the shape \['any', 3, 20, 17\], got \[1, 3, 20, 20\]"):
        engine(np.zeros([1, 3, 20, 20], np.float32))
    with pytest.raises(LowbitError, match="got \\[0, 3, 20, 17\\]"):
        engine(images[:0])
    with pytest.raises(LowbitError, match='has no tensor "nothing"'):
        engine.run_with([images], ["nothing"])
    with pytest.raises(LowbitError, match="whole number of at least 1, got 0"):
        lowbit.Engine(path, threads=0)
    with pytest.raises(LowbitError, match="whole number of at least 1, got '2'"):
        lowbit.Engine(path, threads="2")
    with pytest.raises(LowbitError, match=r"give .*net\.onnx"):
        lowbit.Engine(tmp_path)
    with pytest.raises(LowbitError, match=r'cannot be read .*; did you mean "net\.onnx"'):
        lowbit.Engine(path.parent / "nett.onnx")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LowbitError, match=r"cannot be read \([^;]*$"):
        lowbit.Engine(tmp_path / "empty" / "none.onnx")


def test_it_needs_neither_paddle_nor_onnx(network):
    path, _ = network
    code = f"""
import sys, numpy as np, lowbit
lowbit.Engine({str(path)!r})(np.zeros([1, 3, 20, 17], "float32"))
assert not {{"paddle", "onnx", "onnxruntime", "pydantic"}} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_is_reused(network):
    """The arena is smaller than all tensors together, and does not grow from run to run."""
    path, graph = network
    engine, images = lowbit.Engine(path), graph.images(8)
    arena, weights = engine.memory(images)
    engine(images)
    assert engine.memory(images) == (arena, weights)
    names = [node.output[0] for node in graph.nodes if node.op_type == "QuantizeLinear"]
    tensors = sum(tensor.nbytes for tensor in engine.run_with([images], names).values())
    assert arena < 0.7 * tensors and weights > 0


def test_a_step_has_its_time(network):
    path, graph = network
    rows = lowbit.Engine(path).profile(graph.images(), runs=2)
    assert all(seconds >= 0 for _, seconds in rows) and "Conv" in rows[1][0]
