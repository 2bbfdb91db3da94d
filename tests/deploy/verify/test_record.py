from __future__ import annotations

import os

import numpy as np
import pytest
from paddle import nn

from lowbit.deploy import OnnxRuntimeEngine, PaddleEngine, compare_outputs, export_model, export_onnx
from lowbit.deploy.verify import OnnxGraph, export_fp32, export_missing
from lowbit.deploy.verify.agreement import model_answer
from lowbit.deploy.verify.record import ToExport, fp32_answer
from lowbit.nn import quantization_mode as as_tested
from tests.support.small_net import SHAPE, images, small_net

ENGINES = ["paddle", "onnxruntime", "openvino"]


@pytest.fixture
def trained(tmp_path):
    source = tmp_path / "best.lowbit"
    source.write_text("a checkpoint")
    return ToExport(
        model=small_net(),
        source=source,
        model_name="small",
        image_shape=SHAPE,
        transform_ops=[],
        classes=list("abcd"),
    )


def test_what_is_missing_is_made_once(trained, tmp_path):
    folder = tmp_path / "export"
    notes = export_missing(trained, folder, ["onnxruntime"], None)
    assert "it was not there" in notes[0] and len(notes) > 1
    assert not (folder / "inference.json").exists(), "no engine here reads it"
    kept = (folder / "inference.onnx").stat()
    assert "Paddle Inference: it was not there" in export_missing(trained, folder, ENGINES, None)[0]
    assert export_missing(trained, folder, ENGINES, None) == []
    assert (folder / "inference.onnx").stat().st_mtime_ns == kept.st_mtime_ns


def test_what_is_of_another_checkpoint_is_made_again(trained, tmp_path):
    folder = tmp_path / "export"
    export_missing(trained, folder, ENGINES, None)
    later = (folder / "inference.onnx").stat().st_mtime + 10
    os.utime(trained.source, (later, later))  # copied, say: times tell nothing
    assert export_missing(trained, folder, ENGINES, None) == []
    trained.source.write_text("a better one")
    os.utime(trained.source, (1, 1))
    notes = export_missing(trained, folder, ENGINES, None)
    assert sum("it was of another checkpoint than best.lowbit" in note for note in notes) == 2
    assert export_missing(trained, folder, ENGINES, None) == []


def test_what_does_not_say_where_it_is_from_is_made_again(trained, tmp_path):
    folder, about = tmp_path / "export", {"model_name": "small", "image_shape": SHAPE}
    export_model(trained.model, folder, **about, transform_ops=[], classes=list("abcd"))
    export_onnx(trained.model, folder / "inference.onnx", **about)
    notes = export_missing(trained, folder, ENGINES, None)
    assert sum("it did not say which checkpoint it is of" in note for note in notes) == 2


def test_another_target_is_made_again(trained, tmp_path):
    folder = tmp_path / "export"
    export_missing(trained, folder, ["openvino"], "vnni")
    assert OnnxGraph(folder / "inference.onnx").target == "vnni"
    assert export_missing(trained, folder, ["openvino"], "vnni") == []
    assert "it was for vnni, not avx2" in export_missing(trained, folder, ["openvino"], "avx2")[0]
    assert OnnxGraph(folder / "inference.onnx").target == "avx2"
    assert export_missing(trained, folder, ["openvino"], None) == [], "nobody asked for another one"


def test_the_fp32_files_compute_the_network_without_quantizers(trained, tmp_path):
    folder = export_fp32(trained, tmp_path / "fp32", ENGINES)
    x = images(4)
    quantized = PaddleEngine(_exported(trained, tmp_path / "export"))
    for engine in (PaddleEngine(folder), OnnxRuntimeEngine(folder / "inference.onnx")):
        with as_tested(trained.model, "full"):
            assert compare_outputs(trained.model, engine, x).within(1e-4), engine.name
        assert not compare_outputs(trained.model, engine, x).within(1e-4), "not as quantized"
    assert compare_outputs(trained.model, quantized, x).within(1e-4), "and is as it was"


@pytest.mark.parametrize(
    ("quantized", "engines", "in_a_file"),
    [(False, ENGINES, True), (False, ["paddle"], False), (True, ENGINES, False)],
)
def test_the_model_before_quantization_answers_in_onnx_runtime(
    trained, tmp_path, quantized, engines, in_a_file
):
    baseline = (
        small_net() if quantized else nn.Sequential(nn.Conv2D(3, 4, 3), nn.AdaptiveAvgPool2D(1), nn.Flatten())
    )
    answer = fp32_answer(baseline, trained, tmp_path, engines, threads=1)
    np.testing.assert_allclose(answer(images(4)), model_answer(baseline)(images(4)), rtol=0, atol=1e-5)
    assert (tmp_path / "baseline.onnx").exists() is in_a_file


def _exported(trained, folder):
    export_missing(trained, folder, ["paddle"], None)
    return folder
