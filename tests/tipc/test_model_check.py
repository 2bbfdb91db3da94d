from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from lowbit.data import write_lite_data
from lowbit.deploy import ModelFiles
from lowbit.errors import LowbitError
from lowbit.tipc.judge import ModelReport, Request, read_report
from lowbit.tipc.model_check import (
    OnnxProgram,
    PaddleProgram,
    QuantizationCounts,
    check_model,
    check_quantized,
    check_same_weights,
    count_paddle,
    main,
)
from tests.support.runs import ROOT
from tests.support.tiny_models import export_tiny, save_tiny

_KINDS = {"float32": 5, "float64": 6, "int8": 21}  # Paddle's numbers


def _stored(array: np.ndarray) -> bytes:
    """An array as `.pdiparams` holds it; sizes below 128 are one byte each in protobuf."""
    description = bytes(
        [1 << 3, _KINDS[array.dtype.name], *(b for size in array.shape for b in (2 << 3, size))]
    )
    return struct.pack("<IQIi", 0, 0, 0, len(description)) + description + array.tobytes()


@pytest.fixture
def files(tmp_path):
    def write(program: bytes, *arrays: np.ndarray, suffix: str = ".json") -> ModelFiles:
        model, params = tmp_path / f"m{suffix}", tmp_path / "m.pdiparams"
        model.write_bytes(program)
        params.write_bytes(b"".join(map(_stored, arrays)))
        return ModelFiles(model, params, None)

    return write


WEIGHTS = np.arange(32, dtype=np.float32)


def test_signs_of_quantization(files):
    program = b'{"#":"1.round"} {"#":"1.round_"} {"#":"1.fake_channel_wise_quantize_abs_max"} "1.relu"'
    assert count_paddle(files(program, WEIGHTS, WEIGHTS.astype(np.int8))) == QuantizationCounts(3, 1)
    old = (
        b"\x0a\x0fquantize_linear\x0a\x11dequantize_linear\x0afake_quantize_dequantize_moving_average_abs_max"
    )
    assert count_paddle(files(old, WEIGHTS, suffix=".pdmodel")) == QuantizationCounts(2, 0)
    assert not count_paddle(files(b"conv2d", WEIGHTS, suffix=".pdmodel")).is_quantized


def test_as_many_as_layers():
    assert check_quantized(QuantizationCounts(54, 54), 54).passed is True
    assert check_quantized(QuantizationCounts(54, 0), None).passed is True
    assert check_quantized(QuantizationCounts(53, 54), 54).passed is True  # two layers share an input
    assert check_quantized(QuantizationCounts(53, 53), 54).passed is False
    assert check_quantized(QuantizationCounts(0, 0), None).passed is False


@pytest.mark.parametrize(("quantized", "verdict"), [(False, False), (True, None)])
def test_arrays_of_a_checkpoint(files, tmp_path, quantized, verdict):
    path = tmp_path / "w.pdparams"
    path.write_bytes(pickle.dumps({"w": WEIGHTS, "zeros": np.zeros(64), "few": np.arange(3.0)}))
    same = check_same_weights(path, files(b"", WEIGHTS), quantized=quantized)
    assert (same.passed, same.detail) == (True, "1 of the 1 arrays of w.pdparams are in m.pdiparams")
    other = check_same_weights(path, files(b"", WEIGHTS + 1, np.zeros(64)), quantized=quantized)
    assert other.passed is verdict


def test_nothing_to_compare(files, tmp_path):
    path = tmp_path / "w.pdparams"
    path.write_bytes(pickle.dumps({"zeros": np.zeros(64)}))
    assert check_same_weights(path, files(b"", WEIGHTS), quantized=False).passed is None
    assert check_same_weights(tmp_path / "w.pt", files(b"", WEIGHTS), quantized=False).passed is None


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    data = write_lite_data(folder / "lite_data", tar=False)
    export_tiny(save_tiny(folder, data, quantized=True), folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "name", "where"),
    [
        (PaddleProgram, "inference.json", "inference.json in Paddle Inference"),
        (OnnxProgram, "inference.onnx", "inference.onnx in ONNX Runtime"),
    ],
)
def test_both_formats(exported, kind, name, where):
    program = kind(exported / name)
    assert program.load() == where
    assert program.yml.Global.model_name == "tiny"
    assert program.counts().roundings >= 2  # one for each layer
    assert 0 < program.tolerance(False) <= program.tolerance(True)


def test_parameters_that_are_missing(exported, tmp_path):
    (tmp_path / "inference.json").write_bytes((exported / "inference.json").read_bytes())
    with pytest.raises(LowbitError, match="the parameters are missing"):
        PaddleProgram(tmp_path / "inference.json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders `fp32`, `other` (other weights) and `pact`, each with a checkpoint and its exported model."""
    folder = tmp_path_factory.mktemp("made")
    data = write_lite_data(folder / "lite_data", tar=False)
    for name, settings in {"fp32": {}, "other": {"seed": 1}, "pact": {"quantized": True}}.items():
        export_tiny(save_tiny(folder / name, data, **settings), folder / name)
    return folder


def _request(made, exported: str, trained: str, **more) -> Request:
    values = {
        "program": str(made / exported / "inference.json"),
        "onnx": str(made / exported / "inference.onnx"),
        "weights": str(made / trained / "latest.pdparams"),
        "images": str(made / "lite_data/val"),
        "quantized": False,
    }
    return Request(**values | more)


def _by_name(finding: ModelReport) -> dict[str, list[bool | None]]:
    found: dict[str, list[bool | None]] = {}
    for check in finding.checks:
        found.setdefault(check.name, []).append(check.passed)
    return found


def test_a_right_model(made):
    finding = check_model(_request(made, "fp32", "fp32"))
    assert _by_name(finding) == {"loads": [True, True], "same answers as trained": [True, True]}
    assert finding.image_count == 16
    assert len(finding.expected) == 8
    assert sum(finding.expected[0].probabilities) == pytest.approx(1)


def test_a_right_quantized_model(made):
    found = _by_name(check_model(_request(made, "pact", "pact", quantized=True)))
    assert found == {
        "loads": [True, True],
        "quantized": [True, True],
        "same answers as trained": [True, True],
    }


def test_a_model_of_other_weights(made):
    finding = check_model(_request(made, "other", "fp32"))
    assert _by_name(finding)["same answers as trained"] == [False, False]


def test_the_fp32_model_of_a_quantized_training(made):
    """What the original did, and did not notice."""
    finding = check_model(_request(made, "fp32", "pact", quantized=True))
    assert _by_name(finding)["quantized"] == [False, False]
    assert "nothing in the exported model quantizes: it is the fp32 model" in finding.checks[1].detail


def test_a_training_that_was_not_quantized(made):
    finding = check_model(_request(made, "fp32", "fp32", quantized=True))
    assert finding.checks[1].detail == "no layer of the trained model is quantized"


def test_images_may_be_left_out(made):
    finding = check_model(_request(made, "fp32", "fp32", images=None))
    assert _by_name(finding)["same answers as trained"] == [True, True]
    assert (finding.expected, finding.image_count) == ([], 0)


def test_a_checkpoint_by_its_own_name(made):
    request = _request(
        made, "pact", "pact", weights=str(made / "pact/latest.lowbit"), onnx=None, quantized=True
    )
    assert _by_name(check_model(request))["same answers as trained"] == [True]


def _foreign(made, tmp_path, exported: str, trained: str, **more) -> ModelReport:
    """Without what lowbit writes beside its files: somebody else's."""
    for name in ("inference.json", "inference.pdiparams"):
        (tmp_path / name).write_bytes((made / exported / name).read_bytes())
    (tmp_path / "w.pdparams").write_bytes((made / trained / "latest.pdparams").read_bytes())
    more = {"onnx": None, "program": str(tmp_path / "inference.json"), **more}
    return check_model(_request(made, exported, trained, weights=str(tmp_path / "w.pdparams"), **more))


def test_somebody_elses_model(made, tmp_path):
    finding = _foreign(made, tmp_path, "fp32", "fp32")
    assert _by_name(finding) == {
        "loads": [True],
        "weights of the checkpoint": [True],
        "same answers as trained": [None],
    }
    assert "the trained model is not known here" in finding.checks[-1].detail


def test_somebody_elses_model_with_random_weights(made, tmp_path):
    finding = _foreign(made, tmp_path, "other", "fp32")
    assert _by_name(finding)["weights of the checkpoint"] == [False]
    assert "it was exported with other weights" in finding.checks[-1].detail


def test_somebody_elses_quantized_model(made, tmp_path):
    finding = _foreign(made, tmp_path, "pact", "pact", quantized=True)
    assert _by_name(finding)["quantized"] == [True]
    finding = _foreign(made, tmp_path, "fp32", "fp32", quantized=True)
    assert _by_name(finding)["quantized"] == [False]


@pytest.mark.parametrize("name", ["inference.pdiparams", "inference.json"])
def test_a_damaged_model(made, tmp_path, name):
    for file in ("inference.json", "inference.pdiparams", "inference.yml"):
        (tmp_path / file).write_bytes((made / "fp32" / file).read_bytes())
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
    request = _request(made, "fp32", "fp32", program=str(tmp_path / "inference.json"), onnx=None)
    finding = check_model(request)
    assert _by_name(finding) == {"loads": [False]}
    assert "is damaged or belongs to another export" in finding.checks[0].detail


def test_trouble_is_a_failed_check(made, tmp_path):
    request = _request(made, "fp32", "fp32", images=str(tmp_path / "nothing"))
    (tmp_path / "in.json").write_text(json.dumps(asdict(request)), "utf-8")
    main(tmp_path / "in.json", tmp_path / "out.json")
    assert [check.detail for check in read_report(tmp_path / "out.json").checks] == [
        f"no image or folder {tmp_path / 'nothing'}"
    ]


def test_as_a_program(made, tmp_path):
    (tmp_path / "in.json").write_text(json.dumps(asdict(_request(made, "fp32", "fp32"))), "utf-8")
    words = ["-m", "lowbit.tipc.model_check", str(tmp_path / "in.json"), str(tmp_path / "out.json")]
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT, capture_output=True)
    assert all(check.passed for check in read_report(tmp_path / "out.json").checks)
