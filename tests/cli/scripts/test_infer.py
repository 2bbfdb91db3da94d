from __future__ import annotations

import inspect

import pytest

from lowbit.cli.scripts.infer import infer
from tests.cli.test_infer import LINE


def test_defaults():
    defaults = {name: value.default for name, value in inspect.signature(infer).parameters.items()}
    expected = {"use_gpu": "False", "max_batch_size": 16, "batch_size": 1, "benchmark": "False", "warmup": 0}
    assert expected.items() <= defaults.items()
    assert {"model_dir", "img_path", "resize_size", "crop_size"} <= set(defaults)


@pytest.mark.parametrize("no", ["False", "false", "0", "no"])
def test_answers(run, trained, lite, no):
    options = [f"--use-gpu={no}", "--batch-size=4", f"--benchmark={no}"]
    result = run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={lite / 'val'}", *options)
    assert result.code == 0, result
    assert len(result.out.splitlines()) == 16
    assert all(LINE.match(line) for line in result.out.splitlines())


def test_the_benchmark_report_comes_with_the_answers(run, trained, lite):
    image = lite / "val" / "cross" / "cross_0.jpg"
    options = ["--use-gpu=False", "--benchmark=True", "--warmup=2"]
    result = run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={image}", *options)
    assert result.code == 0, result
    first, *report = result.out.splitlines()
    assert LINE.match(first)
    assert all(" root INFO: " in line for line in report)
    for word in (
        "drivier_version",
        "paddle_version",
        "enable_mkldnn",
        "precision: fp32",
        "postprocess_time(ms)",
    ):
        assert word in result.out


def test_sizes_replace_those_of_the_export(run, trained, lite):
    image = lite / "val" / "cross" / "cross_0.jpg"
    common = [f"--model-dir={trained / 'export'}", f"--img-path={image}"]
    exported = run("infer.py", *common)
    assert run("infer.py", *common, "--resize-size=36", "--crop-size=32").out == exported.out
    assert run("infer.py", *common, "--resize-size=200", "--crop-size=32").out != exported.out
    message = run("infer.py", *common, "--resize-size=56", "--crop-size=48").error  # it takes 32x32 only
    assert "32" in message


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--batch-size=17", "--batch-size 17 is above --max-batch-size 16"),
        ("--use-gpu=True", "is not available"),
        ("--img-path=nowhere", "no image or folder nowhere"),
        ("--model-dir=nowhere", "the model folder nowhere does not exist"),
    ],
)
def test_mistakes(run, trained, lite, option, message):
    common = [f"--model-dir={trained / 'export'}", f"--img-path={lite / 'val'}"]
    assert message in run("infer.py", *common, option).error


def test_a_yes_or_no_that_is_neither(run, trained, lite):
    result = run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={lite}", "--use-gpu=maybe")
    assert result.code == 2
    assert "expected True or False, got 'maybe'" in result.err


def test_a_folder_without_images(run, trained, tmp_path):
    message = run("infer.py", f"--model-dir={trained / 'export'}", f"--img-path={tmp_path}").error
    assert str(tmp_path) in message
