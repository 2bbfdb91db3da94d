from __future__ import annotations

import json
import shutil

import pytest

from lowbit.config import validate
from lowbit.training import inputs
from lowbit.training.loop import train
from tests.support.commands import ACCURACY, tiny_values, write_config


def figures(result) -> dict[str, float]:
    assert result.code == 0, result
    return json.loads(result.out.splitlines()[-1])


def test_a_run_folder(run, trained):
    result = run("lowbit", "eval", trained)
    assert result.code == 0, result
    assert ACCURACY.search(result.out)
    assert "best.lowbit: 16 images" in result.out


@pytest.mark.parametrize(
    "which", ["checkpoints/latest.lowbit", "checkpoints/model_0", "checkpoints/best.pdparams"]
)
def test_one_checkpoint(run, trained, which):
    name = which.split("/")[1].split(".")[0]
    result = run("lowbit", "eval", trained / which)
    assert result.code == 0, result
    assert f"{name}.lowbit" in result.out


def test_before_and_after_export_are_the_same(run, trained):
    before = figures(run("lowbit", "eval", trained, "--json"))
    after = figures(run("lowbit", "eval", trained / "export", "--json"))
    assert {"top1", "top5", "loss"} <= set(before)
    assert (after["top1"], after["top5"]) == (before["top1"], before["top5"])
    assert after["samples"] == 16


@pytest.fixture(scope="module")
def quantized(trained, lite, tmp_path_factory):
    """A quantized run of one epoch that started from the trained one."""
    values = tiny_values(lite, tmp_path_factory.mktemp("quantized") / "run")
    values["Global"]["pretrained_model"] = str(trained / "checkpoints/best.pdparams")
    return train(validate(values | {"Recipe": {"weight_bits": 4, "activation_bits": 4}}, {}, "quantized"))


def test_a_quantized_model_stands_beside_its_fp32_model(run, quantized, trained):
    result = run("lowbit", "eval", quantized)
    assert result.code == 0, result
    assert "best.lowbit: 16 images" in result.out and "fp32.lowbit: 16 images" in result.out
    assert len(ACCURACY.findall(result.out)) == 1 and ACCURACY.match(result.out.splitlines()[-1])
    got, fp32 = (figures(run("lowbit", "eval", model, "--json")) for model in (quantized, trained))
    assert got["fp32"] == fp32
    assert got["difference"] == {name: got[name] - fp32[name] for name in fp32}
    assert f"fp32        {100 * fp32['top1']:.2f} %" in result.out
    # The same images, also where the user gives other ones.
    result = run("lowbit", "eval", quantized, "--batch-size", 5, "-o", "Metric.Eval.0.TopkAcc.topk=[1, 2]")
    assert "top-2" in result.out and "top-5" not in result.out


def test_weights_of_a_quantized_run_have_a_baseline_too(run, quantized, lite, tmp_path):
    config = write_config(tmp_path / "c.yaml", tiny_values(lite, tmp_path))
    weights = quantized / "checkpoints" / "best.pdparams"
    got = figures(run("lowbit", "eval", "-c", config, "--pretrained", weights, "--json"))
    assert got == figures(run("lowbit", "eval", quantized, "--json"))


def test_a_quantized_run_without_a_baseline_says_so(run, quantized, tmp_path):
    shutil.copytree(quantized, tmp_path / "run")
    (tmp_path / "run/checkpoints/fp32.lowbit").unlink()
    assert run("lowbit", "eval", tmp_path / "run").out.count("no fp32 model to compare with") == 1
    got = figures(run("lowbit", "eval", tmp_path / "run", "--json"))
    assert got["fp32"] is None and "difference" not in got


def test_a_config_and_weights(run, trained, lite, tmp_path):
    config = write_config(tmp_path / "c.yaml", tiny_values(lite, tmp_path))
    weights = trained / "checkpoints" / "best.pdparams"
    got = figures(run("lowbit", "eval", "-c", config, "--pretrained", weights, "--json"))
    assert got == figures(run("lowbit", "eval", trained, "--json"))


def test_other_images(run, trained, lite, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(lite, data, ignore=shutil.ignore_patterns("*_list.txt", "cross_1.jpg"))
    for model in (trained, trained / "export"):
        result = run("lowbit", "eval", model, "--data-path", data, "--batch-size", 4)
        assert result.code == 0, result
        assert ": 15 images" in result.out


def test_overrides_change_the_checkpoints_config(run, trained):
    result = run("lowbit", "eval", trained, "-o", "Metric.Eval.0.TopkAcc.topk=[1, 2, 3]")
    assert " * Acc@1 " in result.out
    assert " Acc@2 " in result.out
    message = run("lowbit", "eval", trained, "-o", "DataLoader.Eval.samplr.batch_size=1").error
    assert 'did you mean "sampler"?' in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a checkpoint (or run folder), or -c CONFIG with --pretrained WEIGHTS"),
        (("--pretrained=w.pdparams",), "--pretrained needs -c CONFIG"),
        (("nowhere",), "nowhere: no lowbit checkpoint there"),
        (("--device=gpu", "TRAINED"), "is not available"),
        (("--device=tpu", "TRAINED"), "unknown device"),
        (("--data-path=nowhere", "TRAINED"), "nowhere: no such folder"),
        (("TRAINED", "--pretrained=w.pdparams"), "give either a checkpoint"),
        (("TRAINED/export", "--pretrained=w.pdparams"), "omit --pretrained"),
        (
            ("TRAINED/export", "--data-path=d", "-o", "Global.epochs=1"),
            "and so do -c and -o; give one of them",
        ),
        (("TRAINED/export", "-c", "nowhere.yaml"), "no config file nowhere.yaml"),
        (("-c", "nowhere.yaml", "TRAINED"), "no config file nowhere.yaml"),
    ],
)
def test_mistakes(run, trained, arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [word.replace("TRAINED", str(trained)) for word in arguments]
    assert message in run("lowbit", "eval", *words).error


def test_a_folder_without_a_checkpoint(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no lowbit checkpoint there; give a run folder" in run("lowbit", "eval", tmp_path / "empty").error


def test_an_export_that_does_not_know_its_images(run, trained, tmp_path):
    shutil.copytree(trained / "export", tmp_path / "moved")
    message = run("lowbit", "eval", tmp_path / "moved").error
    assert "does not say which images to evaluate on; give --data-path or -c CONFIG" in message


def test_a_corrupt_image_is_an_error_that_names_it(run, trained, lite, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(lite, data)
    (data / "val" / "cross" / "cross_1.jpg").write_bytes(b"not a picture")
    for model in (trained, trained / "export"):
        assert "cross_1.jpg" in run("lowbit", "eval", model, "--data-path", data).error


def test_more_classes_than_outputs(run, trained, lite, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(lite, data, ignore=shutil.ignore_patterns("*_list.txt"))
    for split in ("train", "val"):
        shutil.copytree(data / split / "cross", data / split / "zebra")
    for model in (trained, trained / "export"):
        message = run("lowbit", "eval", model, "--data-path", data).error
        assert '"zebra" is not one of the classes trained on' in message


def test_a_batch_size_is_used_whatever_says_which_images(run, trained, lite, monkeypatch):
    sizes = []
    real = inputs.build_loader

    def build(split, *arguments, **options):
        sizes.append(split.sampler.batch_size)
        return real(split, *arguments, **options)

    monkeypatch.setattr("lowbit.api.evaluation.build_loader", build)
    for model in (trained, trained / "export"):
        run("lowbit", "eval", model, "--batch-size", 3)
        run("lowbit", "eval", model)
        run("lowbit", "eval", model, "--data-path", lite, "--batch-size", 3)
        run("lowbit", "eval", model, "--data-path", lite)
    assert sizes == [3, 8, 3, 64] * 2


def test_an_onnx_file(run, trained, lite, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    assert run("lowbit", "verify", folder, "--engines", "onnxruntime", "--images", 1).code == 0
    file = folder / "export" / "inference.onnx"
    before = figures(run("lowbit", "eval", trained, "--json"))
    after = figures(run("lowbit", "eval", file, "--json"))
    assert (after["top1"], after["top5"], after["samples"]) == (before["top1"], before["top5"], 16)
    assert "16 images in ONNX Runtime" in run("lowbit", "eval", file, "--data-path", lite).out
    assert "evaluated on the CPU; leave out --device gpu" in run("lowbit", "eval", file, "--device=gpu").error
    assert "no ONNX file" in run("lowbit", "eval", file.with_name("nowhere.onnx")).error


def rows(result) -> list[dict]:
    assert result.code == 0, result
    return json.loads(result.out.splitlines()[-1])


def test_six_tests_and_the_accuracy_as_quantized(run, low_precision):
    result = run("lowbit", "eval", low_precision, "--table")
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert "best.lowbit: 16 images" in lines[0]
    assert lines[1] == "batch norm refreshed on 2 training batches (all there are; 50 were asked for)"
    assert [line.split("  ")[0].strip() for line in lines[2:9]] == [
        *("tested as", "w4a4", "w4a4", "w4", "w4", "fp", "fp"),
    ]
    plain = run("lowbit", "eval", low_precision).out.splitlines()[-1]
    assert lines[-1] == plain and plain.startswith(" * Acc@1")


def test_the_figures_are_those_of_evaluation(run, low_precision):
    found = rows(run("lowbit", "eval", low_precision, "--table", "--json"))
    assert [(row["how"], row["refreshed"]) for row in found] == [
        (how, refreshed) for how in ("quantized", "weights", "full") for refreshed in (False, True)
    ]
    plain = json.loads(run("lowbit", "eval", low_precision, "--json").out.splitlines()[-1])
    assert found[0]["metrics"] == {name: plain[name] for name in found[0]["metrics"]}
    losses = [row["metrics"]["loss"] for row in found]
    assert len(set(losses)) == 6  # six different models, in effect
    again = rows(run("lowbit", "eval", low_precision, "--table", "--json"))
    assert again == found


def test_without_batches_for_batch_norm_there_are_three_tests(run, low_precision, tmp_path):
    all_rows = rows(run("lowbit", "eval", low_precision, "--table", "--json"))
    found = rows(run("lowbit", "eval", low_precision, "--table", "--bn-batches=0", "--json"))
    assert found == all_rows[::2]
    result = run("lowbit", "eval", low_precision, "--table", "--bn-batches=1")
    assert "batch norm refreshed on 1 training batches\n" in result.out


def test_other_images_in_the_table(run, low_precision, lite, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(lite, copied)
    batches = ("--batch-size=8", "--data-path", copied)
    found = rows(run("lowbit", "eval", low_precision, "--table", *batches, "--json"))
    assert found == rows(run("lowbit", "eval", low_precision, "--table", "--json"))


def test_missing_training_images_are_said_to_be_for_batch_norm(run, low_precision, lite, tmp_path):
    values = tiny_values(lite, tmp_path / "run")
    values["DataLoader"]["Train"]["dataset"]["path"] = str(tmp_path / "nowhere")
    gone = write_config(tmp_path / "gone.yaml", values)
    message = run("lowbit", "eval", low_precision, "-c", gone, "--table").error
    assert message.startswith("batch norm is refreshed on training images: ")
    assert "nowhere" in message and message.endswith("leave these rows out with --bn-batches 0")
    del values["DataLoader"]["Train"]
    none = write_config(tmp_path / "none.yaml", values)
    assert "has no DataLoader.Train" in run("lowbit", "eval", low_precision, "-c", none, "--table").error
    assert (
        len(rows(run("lowbit", "eval", low_precision, "-c", none, "--table", "--bn-batches=0", "--json")))
        == 3
    )


def test_what_can_be_tested_in_one_way_only(run, trained):
    assert "is not quantized: there is one way only" in run("lowbit", "eval", trained, "--table").error
    assert "is exported" in run("lowbit", "eval", trained / "export", "--table").error
    assert "no effect without --table" in run("lowbit", "eval", trained, "--bn-batches=3").error


def test_qat_has_the_table_too(run, lite, tmp_path):
    values = tiny_values(lite, tmp_path / "run")
    folder = train(validate(values | {"Recipe": {"weight_bits": 4, "activation_bits": 8}}, {}, "qat"))
    found = rows(run("lowbit", "eval", folder, "--table", "--json"))
    assert [row["name"] for row in found[::2]] == ["w4a8", "w4", "fp"]
