"""What an exported form gains, in words and in figures."""

import numpy as np
import pytest

from lowbit.deploy.gains import READ_BY, EngineGain, check_form, differences, measure_gains, slower_lines
from lowbit.deploy.verify import installed_engines
from lowbit.errors import LowbitError
from tests.support.small_onnx import SHAPE, small_onnx


def gain(engine, faster, ms=1.0):
    return EngineGain(engine, f"{engine} 1", 1.0, 0.0, ms=ms, fp32_ms=ms * faster, faster=faster)


def test_nothing_is_said_where_all_is_faster_or_not_measured():
    assert slower_lines([("onnx", gain("onnxruntime", 1.4)), ("paddle", gain("paddle", 0.99))]) == []
    assert slower_lines([("onnx", EngineGain("onnxruntime", "ONNX Runtime 1", 1.0, 0.0))]) == []


def test_a_slower_form_is_named_with_its_ratio_and_the_best_other():
    lines = slower_lines(
        [
            ("paddle", gain("paddle", 0.04, 150)),
            ("onnx", gain("onnxruntime", 1.2, 3.0)),
            ("onnx", gain("openvino", 1.1, 2.0)),
        ]
    )
    assert lines == [
        "SLOWER THAN FP32: paddle in paddle 1, 0.04x of fp32",
        "Deploy onnx in openvino 1 instead: 1.10x, 2 ms a sample.",
    ]


def test_where_nothing_is_faster_fp32_is_recommended():
    assert "--form fp32" in slower_lines([("onnx", gain("onnxruntime", 0.4))])[-1]
    # Faster than fp32 in its own engine, slower than fp32 in the other.
    gains = [("onnx", gain("openvino", 0.9, 2.2)), ("onnx", gain("lowbit", 1.1, 10.0))]
    assert "--form fp32" in slower_lines(gains)[-1]


def test_forms_are_checked():
    check_form(None)
    check_form("fp32")
    with pytest.raises(LowbitError, match='no form "int4"'):
        check_form("int4")


def test_differences_are_of_the_worst_output():
    own = [np.array([[1.0, 10.0]]), np.array([[0.5]])]
    found = [np.array([[1.0, 11.0]]), np.array([[1.0]])]
    assert differences(found, own) == (1.0, 1.0)
    assert differences([np.full((1, 2), np.nan), own[1]], own) == (np.inf, np.inf)


def test_every_installed_engine_is_measured(tmp_path, export_times):
    file = small_onnx(tmp_path / "inference.onnx")
    images = np.random.default_rng(0).standard_normal((3, *SHAPE), dtype=np.float32)
    from lowbit.deploy import OnnxRuntimeEngine

    own = [OnnxRuntimeEngine(file, optimize=False).run(images)]
    found = measure_gains("onnx", tmp_path, [images], own, classifier=True, fp32=tmp_path)
    assert [one.engine for one in found] == installed_engines(READ_BY["onnx"])[0]
    assert all(one.same_class == 1 and one.faster == 2.0 and one.ms == 1.0 for one in found)
    assert all(one.faster is None for one in measure_gains("onnx", tmp_path, [images], own, classifier=True))


def test_an_engine_that_cannot_run_the_file_is_left_out_with_a_line(tmp_path):
    (tmp_path / "inference.onnx").write_bytes(b"nonsense")
    lines = []
    images = np.zeros((1, *SHAPE), np.float32)
    assert measure_gains("onnx", tmp_path, [images], [images], classifier=False, tell=lines.append) == ()
    assert [line.partition(" ")[0] for line in lines] == installed_engines(READ_BY["onnx"])[0]
