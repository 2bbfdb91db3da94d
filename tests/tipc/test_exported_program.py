from __future__ import annotations

import pytest

from lowbit.data import write_lite_data
from lowbit.errors import LowbitError
from lowbit.tipc.exported_program import OnnxProgram, PaddleProgram
from tests.tipc.tiny_models import export_tiny, save_tiny


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
    assert program.signs().roundings >= 2  # one for each layer
    assert 0 < program.tolerance(False) <= program.tolerance(True)


def test_parameters_that_are_missing(exported, tmp_path):
    (tmp_path / "inference.json").write_bytes((exported / "inference.json").read_bytes())
    with pytest.raises(LowbitError, match="the parameters are missing"):
        PaddleProgram(tmp_path / "inference.json")
