from __future__ import annotations

import inspect
import re
import shutil

import pytest

from lowbit.compat.scripts.post_quant import post_quant
from lowbit.deploy.model_files import stored_tensors
from tests.support.commands import LINE


def test_defaults_are_those_of_the_original():
    defaults = {name: value.default for name, value in inspect.signature(post_quant).parameters.items()}
    expected = {"model_filename": None, "params_filename": None, "batch_num": 10, "batch_size": 10}
    assert (expected | {"algo": "hist", "hist_percent": 0.999}).items() <= defaults.items()
    assert str(defaults["output_dir"]) == "output"


@pytest.fixture
def weights(trained):
    return trained / "checkpoints/best.pdparams"


@pytest.mark.parametrize(
    ("options", "observer"),
    [
        ((), "percentile(99.9)"),
        (("--algo=hist", "--hist_percent=0.99999"), "percentile(99.999)"),
        (("--algo=KL",), "kl"),
        (("--algo=abs_max",), "minmax"),
    ],
)
def test_quantized_and_served(run, weights, lite, tmp_path, options, observer):
    where = ["--use_gpu=False", "--batch_num=2", "--batch_size=4"]
    paths = [f"--model_path={weights}", f"--data={lite}", f"--output_dir={tmp_path / 'out'}"]
    result = run("post_quant.py", *paths, *where, *options)
    assert result.code == 0, result
    assert f"per-tensor {observer} fixed".replace("minmax ", "") in result.out  # the default is not shown
    assert "Calibrated on 2 batches of 4 images" in result.out
    assert any(tensor.is_8_bit for tensor in stored_tensors(tmp_path / "out/inference.pdiparams"))
    served = run("infer.py", f"--model-dir={tmp_path / 'out'}", f"--img-path={lite / 'val'}")
    assert sum(bool(LINE.match(line)) for line in served.out.splitlines()) == 16


def test_weights_without_a_checkpoint_are_prepared_as_for_imagenet(run, weights, lite, tmp_path):
    shutil.copy(weights, tmp_path / "alone.pdparams")
    options = [
        "--model=tests.support.tiny_net:TinyNet",
        "--img-size=32",
        f"--data_dir={lite}",
        "--use_gpu=False",
    ]
    folder = f"--model_path={tmp_path}"
    result = run(
        "post_quant.py", folder, "--params_filename=alone.pdparams", f"--output_dir={tmp_path}", *options
    )
    assert result.code == 0, result
    assert (tmp_path / "inference.json").is_file()


def test_a_folder_of_a_training(run, trained, lite, tmp_path):
    folder = trained / "checkpoints"
    result = run("post_quant.py", f"--model_path={folder}", f"--data={lite}", f"--output_dir={tmp_path}")
    assert result.code == 0, result


def test_mistakes(run, trained, weights, lite, tmp_path):
    def error(*options: str) -> str:
        return run("post_quant.py", f"--data={lite}", f"--output_dir={tmp_path}", *options).error

    path = f"--model_path={weights}"
    assert "give the .pdparams that it was exported from" in error(f"--model_path={trained / 'export'}")
    assert "lowbit quantizes trained weights" in error(path, "--model_filename=inference.pdmodel")
    assert 'no algorithm "hists"; did you mean "hist"' in error(path, "--algo=hists")
    assert "no checkpoint in" in error(f"--model_path={tmp_path}")
    assert error(f"--model_path={tmp_path / 'nothing.pdparams'}").startswith("no weights at")


def test_a_quantized_model_is_not_quantized_again(run, weights, lite, tmp_path):
    options = [f"--data={lite}", f"--output_dir={tmp_path}"]
    assert run("post_quant.py", f"--model_path={weights}", *options).code == 0
    again = run("post_quant.py", f"--model_path={tmp_path / 'ptq/checkpoints/best.pdparams'}", *options)
    assert "is quantized already" in again.error


def test_the_accuracy_of_an_exported_model(run, weights, lite, tmp_path):
    paths = [f"--model_path={weights}", f"--data={lite}", f"--output_dir={tmp_path}", "--use_gpu=False"]
    assert run("post_quant.py", *paths, "--batch_num=2", "--batch_size=4").code == 0
    named = ["--model_filename=inference.json", "--params_filename=inference.pdiparams"]
    for options in ([], named):
        result = run("eval.py", f"--model_path={tmp_path}", f"--data_dir={lite}", "--batch_size=8", *options)
        assert result.code == 0, result
        assert "End test: test image 16" in result.out
        assert re.search(
            r"test_acc1 [01]\.\d{4}, test_acc5 [01]\.\d{4}, avg time \d\.\d{5} sec/img", result.out
        )
    other = run(
        "eval.py", f"--model_path={tmp_path}", "--model_filename=a.json", "--params_filename=b.pdiparams"
    )
    assert "differ" in other.error
