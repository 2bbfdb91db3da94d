from __future__ import annotations

import json
import shutil

import onnx
import pytest
from onnx import numpy_helper

from lowbit.deploy.verify import Latency
from lowbit.deploy.verify.tables import report_sections
from lowbit.digest import ONNX, add_digest, without_digest
from lowbit.formatting import as_text
from lowbit.training.checkpoint import read_checkpoint, save_checkpoint
from tests.support.runs import tiny_values

QUICK = ("--no-latency", "--images", 64)


@pytest.fixture(scope="session")
def quantized(tmp_path_factory):
    """The folder of a short quantized run on digits, verified once; look, don't touch."""
    from lowbit.config import validate
    from lowbit.training.loop import train

    folder = tmp_path_factory.mktemp("quantized") / "run"
    values = tiny_values(folder, image_shape=[3, 32, 32])
    values["Recipe"] = {"weight_bits": 7}  # with 7 bits no engine's sums overflow, on whatever processor
    train(validate(values, {}, "tiny"))
    return folder


@pytest.fixture
def folder(quantized, tmp_path):
    return shutil.copytree(quantized, tmp_path / "run")


def damage(folder, layer):
    """Eight times the scale of one layer's weights, as a slip in an exporter would have it."""
    file = folder / "export" / "inference.onnx"
    model = onnx.load_from_string(without_digest(file.read_bytes(), ONNX, file))
    for constant in model.graph.initializer:
        if constant.name == f"{layer}.weight.scale":
            constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant) * 8, constant.name))
            break
    else:
        raise AssertionError([constant.name for constant in model.graph.initializer])
    file.write_bytes(add_digest(model.SerializeToString(), ONNX))


def test_a_run_is_exported_and_passes_in_every_engine(run, folder, processor):
    result = run("lowbit", "verify", folder, "--layers", *QUICK)
    assert result.code == 0, result
    for name in ("Paddle Inference 3", "ONNX Runtime 1", "OpenVINO 20"):
        assert f"passed: {name}" in result.out
    assert "integers of all quantized layers are exactly the trained model's" in result.out
    assert "There is no fp32 model of the run" in result.out
    assert "exported to" in result.out and "it was not there" in result.out
    assert "Layers in ONNX Runtime" in result.out and "wrong" not in result.out
    kept = json.loads((folder / "verify.json").read_text("utf-8"))
    assert kept["passed"] is True and kept["images"] == 64 and kept["checkpoint"] == "best.lowbit"
    assert [engine["engine"] for engine in kept["engines"]] == ["paddle", "onnxruntime", "openvino", "lowbit"]
    assert all(engine["agreement"] >= 0.99 and engine["latency"] == [] for engine in kept["engines"])
    assert [row["layer"] for row in kept["engines"][1]["layers"]] == ["conv", "head", "logits"]
    assert {"onnxruntime", "openvino", "paddle", "cpu"} <= set(kept["environment"])
    assert kept["integer_reference"]["unequal"] == 0
    found = kept["predictions"]
    assert set(found["confusion"]) == {"model", "paddle", "onnxruntime", "openvino", "lowbit"}
    assert sum(sum(row.values()) for row in found["confusion"]["model"].values()) == 64
    assert found["differing"] is None and len(found["classes"]) == 10  # there is no fp32 model
    assert [size["format"] for size in kept["sizes"]] == ["Paddle", "ONNX"]


@pytest.mark.parametrize("layer", ["conv", "head"])
def test_the_damaged_layer_is_named(run, folder, layer, processor):
    which = ("--engines", "onnxruntime,openvino", *QUICK)
    assert run("lowbit", "verify", folder, *which).code == 0
    damage(folder, layer)
    values = json.loads(run("lowbit", "verify", folder, *which, "--layers", "--json").out)
    assert [engine["wrong_layers"] for engine in values["engines"]] == [[layer], [layer]]


def test_an_engine_below_the_limit_fails_and_the_wrong_layer_is_named_without_being_asked(run, folder):
    run("lowbit", "verify", folder, *QUICK, "--engines", "onnxruntime")
    damage(folder, "conv")
    result = run("lowbit", "verify", folder, *QUICK, "--engines", "onnxruntime")
    assert result.code == 1
    assert "FAILED: ONNX Runtime" in result.out and "the first wrong layer: conv\n" in result.out
    assert json.loads((folder / "verify.json").read_text("utf-8"))["passed"] is False
    assert run("lowbit", "verify", folder, *QUICK, "--engines", "onnxruntime", "--limit", 0).code == 0


def test_another_checkpoint_is_exported_anew(run, folder):
    run("lowbit", "verify", folder, *QUICK, "--engines", "onnxruntime")
    damage(folder, "conv")
    path = folder / "checkpoints" / "best.lowbit"
    checkpoint = read_checkpoint(path)
    checkpoint.progress.step += 1
    save_checkpoint(path, checkpoint)
    result = run("lowbit", "verify", folder, *QUICK, "--engines", "onnxruntime", "--target", "avx2")
    assert result.code == 0, result
    assert "it was of another checkpoint than best.lowbit" in result.out and "avx2" in result.out


def test_latency_and_the_fp32_model_beside_it(run, folder):
    shutil.copy(folder / "checkpoints" / "best.lowbit", folder / "checkpoints" / "fp32.lowbit")
    result = run("lowbit", "verify", folder, "--images", 20, "--engines", "onnxruntime", "--threads", 1)
    assert result.code == 0, result
    assert "fp32, before quantization" in result.out and "Quantized minus fp32: +0.00 points" in result.out
    values = json.loads((folder / "verify.json").read_text("utf-8"))
    assert values["predictions"]["differing"] == {"lost": 0, "gained": 0, "both_wrong": 0, "images": []}
    (engine,) = values["engines"]
    assert [found["batch_size"] for found in engine["latency"]] == [1, 16]
    for found in engine["latency"]:
        assert found["verdict"] in result.out and found["threads"] == 1
        assert found["fp32_ms"] > 0 and found["quantized_ms"] > 0


def test_a_model_that_is_not_quantized(run, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    result = run("lowbit", "verify", folder, "--images", 5)
    assert result.code == 0, result
    assert "The model is not quantized: its plain export is compared." in result.out
    assert "integer reference" not in result.out and "Latency" not in result.out


def test_other_images(run, trained, lite, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    data = tmp_path / "data"
    shutil.copytree(lite, data, ignore=shutil.ignore_patterns("*_list.txt", "cross_1.jpg"))
    result = run("lowbit", "verify", folder, "--data-path", data, "--engines", "onnxruntime", "--json")
    assert json.loads(result.out)["images"] == 15


def test_a_list_file_that_lacks_the_last_classes(run, trained, lite, tmp_path):
    folder, data = shutil.copytree(trained, tmp_path / "run"), shutil.copytree(lite, tmp_path / "data")
    lines = (data / "val_list.txt").read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if int(line.split()[1]) < 2]
    (data / "val_list.txt").write_text("".join(kept), "utf-8")
    result = run("lowbit", "verify", folder, "--data-path", data, "--engines", "onnxruntime", "--json")
    assert json.loads(result.out)["images"] == len(kept) < len(lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--images", 0), "at least 1 image is needed, got 0"),
        (("--limit", 101), "--limit is a percentage, from 0 to 100; got 101"),
        (("--engines", "tensorrt"), 'no engine "tensorrt"; valid: lowbit, onnxruntime, openvino, paddle'),
        (("--engines", ""), "no engine given"),
        (("--target", "avx"), 'unknown target "avx"'),
        (("--data-path", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_mistakes(run, quantized, arguments, message):
    assert message in run("lowbit", "verify", quantized, *arguments).error
    assert not (quantized / "verify.json").exists()


def test_not_a_run(run, tmp_path):
    assert "no lowbit checkpoint there" in run("lowbit", "verify", tmp_path).error
    assert "is not a run folder" in run("lowbit", "verify", tmp_path / "nowhere").error


def test_no_validation_data(run, folder, monkeypatch):
    from lowbit.training import trained_model

    opened = trained_model.open_checkpoint

    def without_images(path, config=None, **named):
        trained = opened(path, config, **named)
        trained.config.DataLoader.Eval = None
        return trained

    monkeypatch.setattr("lowbit.api.runs.open_checkpoint", without_images)
    assert "give validation images with --data-path" in run("lowbit", "verify", folder).error


def test_a_slower_quantized_model_is_called_slower():
    from lowbit.deploy.verify import EngineReport, Report
    from lowbit.deploy.verify.agreement import Agreement

    result = Agreement(8, 0.5, 1.0, 1.0, 0.0, 0.0, 0.1, 0.7, 0.0, 0.5)
    slow = Latency(1, 2, 8.0, 10.0, 0.8, 0.78, 0.83, 15)
    engine = EngineReport("openvino", "OpenVINO 1", 2, result, latency=[slow])
    text = as_text(report_sections(Report(0.99, result, [engine]), []))
    assert "quantized is slower (0.80x)" in text
