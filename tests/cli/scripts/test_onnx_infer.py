from __future__ import annotations

import pytest

from tests.cli.test_infer import LINE


@pytest.fixture
def onnx(run, trained, tmp_path):
    weights = trained / "checkpoints/best.pdparams"
    result = run(
        "export_model.py", f"--pretrained={weights}", f"--save-inference-dir={tmp_path}", "--format=onnx"
    )
    assert result.code == 0, result
    return tmp_path / "inference.onnx"


def test_the_same_answers_as_paddle_inference(run, onnx, trained, lite):
    images = lite / "val"
    result = run("onnx_infer.py", f"--onnx_file={onnx}", f"--img_path={images}", "--batch_size=4")
    assert result.code == 0, result
    title, *lines = result.out.splitlines()
    assert title == "ONNXRuntime predict: "
    assert len(lines) == 16 and all(LINE.match(line) for line in lines)
    assert (
        lines == run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={images}").out.splitlines()
    )
    folder = run("onnx_infer.py", f"--onnx_file={onnx.parent}", f"--img_path={images}")
    assert folder.out.splitlines()[1:] == lines


def test_no_file(run, tmp_path, lite):
    result = run("onnx_infer.py", f"--onnx_file={tmp_path / 'x.onnx'}", f"--img_path={lite}")
    assert "no ONNX file" in result.error


def test_the_short_side_may_be_another_one(run, onnx, lite):
    image = f"--img_path={lite / 'val/cross/cross_0.jpg'}"
    result = run("onnx_infer.py", f"--onnx_file={onnx}", image, "--crop_size=200")
    assert result.code == 0, result
    assert result.out != run("onnx_infer.py", f"--onnx_file={onnx}", image).out
