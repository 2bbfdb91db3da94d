"""What the engines for ONNX files promise: held to onnx's own reference implementation, and to odd files."""

from __future__ import annotations

import re
import sys

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from lowbit.deploy import LowbitEngine, OnnxRuntimeEngine, OpenVinoEngine
from lowbit.errors import LowbitError
from lowbit.extras import install_command
from tests.support.small_onnx import SHAPE, small_onnx

ENGINES = [OnnxRuntimeEngine, OpenVinoEngine, LowbitEngine]
pytestmark = pytest.mark.parametrize("kind", ENGINES)


@pytest.fixture
def file(tmp_path):
    return small_onnx(tmp_path / "inference.onnx")


@pytest.fixture
def images():
    return np.random.default_rng(1).standard_normal((6, *SHAPE), dtype=np.float32)


def reference(file, images, names):
    return dict(zip(names, ReferenceEvaluator(str(file)).run(names, {"x": images}), strict=True))


def test_answers_equal_the_reference_for_batches_of_any_size(kind, file, images):
    engine = kind(file, threads=1)
    expected = reference(file, images, ["logits"])["logits"]
    for count in (1, 6, 2):
        answer = engine.run(images[:count])
        assert answer.dtype == np.float32
        np.testing.assert_allclose(answer, expected[:count], atol=0.01)
    assert engine.image_shape == SHAPE
    assert (engine.options.device, engine.options.threads, engine.options.optimize) == ("cpu", 1, True)
    assert any(character.isdigit() for character in engine.name)


def test_an_answer_does_not_change_when_the_engine_runs_again(kind, file, images):
    engine = kind(file)
    first = engine.run(images)
    kept = first.copy()
    engine.run(images[::-1].copy())
    engine.run_with(images[::-1].copy(), ["second.input"])
    assert np.array_equal(first, kept)


def test_integers_on_the_way_are_those_of_the_reference(kind, file, images):
    engine, names = kind(file), ["first.input", "second.input"]
    seen, expected = engine.run_with(images, names), reference(file, images, names)
    assert list(seen) == ["logits", *names]
    for name in names:
        assert seen[name].dtype == np.uint8
        steps = np.abs(seen[name].astype(int) - expected[name].astype(int))
        assert steps.max() <= 1 and (steps > 0).mean() < 0.02, name
    assert np.array_equal(seen["first.input"], expected["first.input"])


def test_looking_at_integers_does_not_change_the_answers(kind, file, images):
    engine = kind(file)
    seen = engine.run_with(images, ["first.input", "second.input"])
    assert np.array_equal(seen["logits"], engine.run(images))


def test_an_unknown_tensor(kind, file, images):
    with pytest.raises(LowbitError, match=r'no tensor "second.inptu"; did you mean "second.input"'):
        kind(file).run_with(images, ["second.inptu"])


@pytest.mark.parametrize("content", [b"", b"not onnx at all", None])
def test_a_damaged_file(kind, file, content):
    file.write_bytes(file.read_bytes()[:-400] if content is None else content)
    with pytest.raises(LowbitError, match=r"cannot open .*inference\.onnx.*export the model again"):
        kind(file)


def test_a_file_that_is_not_there(kind, tmp_path):
    with pytest.raises(LowbitError, match=r"no ONNX file .*nowhere\.onnx; export the model first"):
        kind(tmp_path / "nowhere.onnx")
    with pytest.raises(LowbitError, match=r"it holds no \.onnx file"):
        kind(tmp_path)
    small_onnx(tmp_path / "inference.onnx")
    with pytest.raises(LowbitError, match=r"is a folder, not an ONNX file; give .*inference\.onnx"):
        kind(tmp_path)


def test_batches_that_do_not_fit(kind, file, images):
    engine = kind(file)
    with pytest.raises(LowbitError, match="the model takes images of 3x8x8"):
        engine.run(images[:, :, :4])
    with pytest.raises(LowbitError, match="float32 images, got float64"):
        engine.run(images.astype(np.float64))
    with pytest.raises(LowbitError, match="N of at least 1"):
        engine.run(images[:0])
    with pytest.raises(LowbitError, match="a float32 array of NumPy, got list"):
        engine.run(images.tolist())
    assert engine.run(images).shape == (6, 4), "an engine works on after a bad batch"


def test_a_file_that_takes_pictures_of_any_size(kind, tmp_path, images):
    engine = kind(small_onnx(tmp_path / "any.onnx", any_size=True))
    assert engine.image_shape is None
    assert engine.run(images[:, :, :4]).shape == (6, 4)
    with pytest.raises(LowbitError, match=r"cannot run on a batch of \[2, 5, 8, 8\]"):
        engine.run(np.zeros((2, 5, 8, 8), np.float32))


def test_a_model_that_is_not_from_images_to_logits(kind, file):
    model = onnx.load(str(file))
    model.graph.output.append(onnx.helper.make_tensor_value_info("mean", 1, ["N", 4, 1, 1]))
    onnx.save(model, str(file))
    with pytest.raises(LowbitError, match="has 1 inputs and 2 outputs"):
        kind(file).run(np.zeros((1, 3, 8, 8), np.float32))
    assert len(kind(file).run_all([np.zeros((1, 3, 8, 8), np.float32)])) == 2
    for inputs in ([], [np.zeros((1, 3, 8, 8), np.float32)] * 2):
        with pytest.raises(LowbitError, match=r"takes 1 inputs \(.*\), got"):
            kind(file).run_all(inputs)


@pytest.mark.parametrize("threads", [0, -1])
def test_impossible_threads(kind, file, threads):
    with pytest.raises(LowbitError, match="threads must be at least 1"):
        kind(file, threads=threads)


@pytest.mark.parametrize("threads", ["1", 1.5, 10**6])
def test_threads_that_are_no_reasonable_number(kind, file, threads):
    with pytest.raises(LowbitError, match="threads must be a whole number up to 1024"):
        kind(file, threads=threads)


def test_a_package_that_is_not_installed(kind, file, monkeypatch):
    if kind is LowbitEngine:
        pytest.skip("lowbit's runtime needs no package")
    package = {OnnxRuntimeEngine: "onnxruntime", OpenVinoEngine: "openvino"}[kind]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LowbitError, match=re.escape(install_command(package))):
        kind(file)


def test_nothing_is_printed(kind, file, images, capfd):
    kind(file).run_with(images, ["first.input"])
    assert capfd.readouterr() == ("", "")
