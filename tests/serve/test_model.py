"""Finding and opening what is served: engines, folders, names; and the whole thing over HTTP."""

import numpy as np
import pytest

from lowbit.deploy.engines import TensorInfo
from lowbit.errors import LowbitError
from lowbit.serve import open_served_model
from tests.support.exports import SHAPE as TINY
from tests.support.exports import export_tiny
from tests.support.small_onnx import SHAPE, small_onnx
from tests.support.tiny_net import build_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    small_onnx(folder / "inference.onnx")
    return folder


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "lowbit"])
def test_an_onnx_file_in_both_engines(folder, engine):
    model = open_served_model(folder, engine=engine, threads=1, instances=2, name="small")
    assert model.inputs == (TensorInfo("x", np.dtype("float32"), (-1, *SHAPE)),)
    assert model.outputs == (TensorInfo("logits", np.dtype("float32"), (-1, 4)),)
    assert model.platform == f"lowbit_{engine}" and model.joins
    assert len(model.engines) == 2 and model.sample_values == 3 * 8 * 8


def test_answers_over_http_are_the_engines(folder, serving):
    httpx = pytest.importorskip("httpx")
    model = open_served_model(folder, threads=1)
    images = np.random.default_rng(0).standard_normal((3, *SHAPE), dtype=np.float32)
    given = {"name": "x", "shape": list(images.shape), "datatype": "FP32", "data": images.tolist()}
    with serving(model) as url:
        answer = httpx.post(f"{url}/v2/models/model/infer", json={"inputs": [given]}).json()
    found = np.array(answer["outputs"][0]["data"], np.float32).reshape(3, 4)
    np.testing.assert_array_equal(found, model.engines[0].run(images))


def test_a_paddle_export_takes_the_images_of_its_yml(tmp_path):
    export_tiny(build_tiny(), tmp_path / "export")
    model = open_served_model(tmp_path, threads=1)  # a run folder
    assert model.name == "tiny" and model.platform == "lowbit_paddleinference"
    assert model.inputs[0].shape == (-1, *TINY) and model.outputs[0].shape == (-1, 4)
    (tmp_path / "export" / "inference.yml").unlink()
    with pytest.raises(LowbitError, match="does not say what shape"):
        open_served_model(tmp_path)


def test_mistakes_are_named(folder, tmp_path):
    with pytest.raises(LowbitError, match='no engine "onnx"'):
        open_served_model(folder, engine="onnx")
    with pytest.raises(LowbitError, match="--format paddle-int8"):
        open_served_model(folder, engine="paddle-int8")
    with pytest.raises(LowbitError, match="part of a URL"):
        open_served_model(folder, name="a/b")
    small_onnx(tmp_path / "inference.onnx", any_size=True)
    with pytest.raises(LowbitError, match="only the batch size open"):
        open_served_model(tmp_path)
