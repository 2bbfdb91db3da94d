from __future__ import annotations

import json
import math

import numpy as np
import pytest
from paddle import nn

from lowbit.api.verification import describe_engine
from lowbit.data import ArrayDataset, Loader
from lowbit.deploy import OnnxRuntimeEngine
from lowbit.deploy.verify import Candidate, Size, report_values, verify
from lowbit.deploy.verify.agreement import model_answer
from lowbit.deploy.verify.integer_reference import SAMPLE
from lowbit.deploy.verify.tables import report_sections
from lowbit.errors import LowbitError
from tests.support.small_net import LAYERS, Answering, ProgressBar, small_net, write_qdq


@pytest.fixture
def loader():
    rng = np.random.default_rng(0)
    return _loader(rng.integers(0, 256, (20, 8, 8, 3), np.uint8), rng.integers(0, 4, 20))


def _loader(images, labels):
    dataset = ArrayDataset(images, labels, list("abcd"), "noise")

    def transform(image, generator, out=None):
        values = (image.transpose(2, 0, 1) / 64 - 2).astype(np.float32)
        if out is not None:
            out[:] = values
        return values

    transform.at_least = None
    return Loader(
        dataset, transform, batch_size=8, shuffle=False, drop_last=False, workers=1, seed=0, training=False
    )


def damaged_stem(name, constants):
    if name == "stem":
        constants["weight"] = -constants["weight"]


def test_a_sound_export_passes(loader, tmp_path):
    model, progress = small_net(), ProgressBar()
    file = write_qdq(model, tmp_path / "inference.onnx")
    engine = OnnxRuntimeEngine(file, threads=1)
    report = verify(
        model,
        [Candidate("onnxruntime", engine, fp32=engine, onnx=file)],
        loader,
        progress=progress,
        baseline=model_answer(small_net(bits=8)),
        layers=True,
    )
    assert report.failing == [] and report.engines[0].wrong_layers == []
    assert report.model.images == 20 and report.integers_unequal == 0 and report.fp32.agreement > 0.5
    assert [row.name for row in report.engines[0].layers] == [*LAYERS, "logits"]
    assert [found.batch_size for found in report.engines[0].latency] == [1, 16]
    assert all(total == done for _, total, done in progress.log)
    titles = ["verify", f"layers in {engine.name}", "latency"]
    assert [title for title, *_ in progress.log] == titles
    assert report.by_network is None  # 20 images are few: the network computed all


@pytest.fixture
def many():
    rng = np.random.default_rng(0)
    return _loader(rng.integers(0, 256, (128, 8, 8, 3), np.uint8), rng.integers(0, 4, 128))


def test_the_network_computes_a_sample_and_the_reference_the_rest(many, tmp_path):
    model, asked = small_net(), []
    file = write_qdq(model, tmp_path / "inference.onnx")

    def simulated(images):
        asked.append(len(images))
        return model_answer(model)(images)

    candidates = [
        Candidate("onnxruntime", OnnxRuntimeEngine(file, threads=1), onnx=file),
        Candidate("paddle", Answering(simulated)),
    ]
    report = verify(model, candidates, many, limit=0.97, latency=False)
    assert report.by_network == report.integers_images == sum(asked) == SAMPLE == 64
    assert asked == [4] * 16, "spread over all batches"
    assert [engine.result.images for engine in report.engines] == [128, 64]
    assert report.failing == [] and report.model.images == 128 and report.integers.images == 64
    assert "% of the images" in report.verdict(report.engines[0])
    assert "relative error" not in report.verdict(report.engines[0]), "100 images show 97 %"
    assert "100.00 % of 64 images" in report.verdict(report.engines[1])
    assert "relative error" in report.verdict(report.engines[1]), "64 do not: the outputs decide, too"
    answers = report_sections(report, [])[0]
    assert "The trained model itself computed 64 of the images" in answers.lines[0]
    names = [row[0] for row in answers.rows]
    assert names[1] == "integer reference (64)" and names[3].endswith(" (64)") and "(" not in names[2]
    about = "(64): on a sample of 64 images. Its top-1 cannot be compared with that of all images."
    assert about in answers.lines
    values = report_values(report, [])
    assert values["integer_reference"]["by_network"] == 64
    asked.clear()
    everything = verify(model, candidates, many, limit=1.0, latency=False)
    assert everything.by_network is None and everything.integers_images == 64 and sum(asked) == 128
    assert describe_engine(report.engines[1], report, Size("Paddle", 1, None)).samples == 64


def test_a_sample_may_be_judged_by_its_outputs(many, tmp_path):
    """The right classes from outputs that are far away, on too few images to show the limit."""
    model = small_net()
    file = write_qdq(model, tmp_path / "inference.onnx")
    candidates = [
        Candidate("onnxruntime", OnnxRuntimeEngine(file, threads=1), onnx=file),
        Candidate("paddle", Answering(lambda images: 1.5 * model_answer(model)(images))),
    ]
    report = verify(model, candidates, many, limit=0.97, latency=False)
    assert [engine.key for engine in report.failing] == ["paddle"]
    assert report.engines[1].result.agreement == 1.0


def test_where_integers_differ_the_network_computes_all(many, tmp_path):
    """A file of other weights: its own engines must not agree with it, but with the network."""
    model, progress = small_net(), ProgressBar()
    file = write_qdq(model, tmp_path / "inference.onnx", damaged_stem)
    candidates = [
        Candidate("onnxruntime", OnnxRuntimeEngine(file, threads=1), onnx=file),
        Candidate("paddle", Answering(model_answer(model))),
    ]
    report = verify(model, candidates, many, progress=progress, latency=False)
    assert report.by_network is None and report.integers_unequal == 0 and report.integers_images == 64
    assert [engine.key for engine in report.failing] == ["onnxruntime"]
    assert [title for title, *_ in progress.log][:2] == ["verify", "verify"], "from the start"
    np.testing.assert_allclose(report.engines[1].result.max_difference, 0, atol=1e-5)


def test_a_damaged_export_fails_and_its_layer_is_named_without_being_asked(loader, tmp_path):
    model = small_net()
    file = write_qdq(model, tmp_path / "inference.onnx", damaged_stem)
    candidates = [
        Candidate("onnxruntime", OnnxRuntimeEngine(file), onnx=file),
        Candidate("paddle", Answering(model_answer(model))),
    ]
    report = verify(model, candidates, loader, progress=ProgressBar())
    assert [engine.key for engine in report.failing] == ["onnxruntime"]
    assert report.engines[0].wrong_layers == ["stem"]
    assert report.engines[1].layers is None and report.engines[1].result.agreement == 1
    assert report.engines[0].latency == [], "there is no fp32 form to compare with"


def test_the_limit_decides(loader):
    model = small_net()
    own = model_answer(model)

    def run(images):
        logits = own(images)
        logits[:1] *= -1  # one of 8 images
        return logits

    candidates = [Candidate("paddle", Answering(run))]
    strict = verify(model, candidates, loader, progress=ProgressBar(), latency=False)
    assert len(strict.failing) == 1
    loose = verify(model, candidates, loader, progress=ProgressBar(), latency=False, limit=0.8)
    assert loose.failing == []
    with pytest.raises(LowbitError, match="from 0 to 1; got 99"):
        verify(model, candidates, loader, progress=ProgressBar(), limit=99)


def test_a_model_that_is_not_quantized(loader):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    candidates = [Candidate("paddle", Answering(model_answer(model)))]
    report = verify(model, candidates, loader, progress=ProgressBar(), layers=True)
    assert report.integers is None and report.fp32 is None and report.engines[0].layers is None
    values = report_values(report, [Size("Paddle", 100, None)], run="runs/plain")
    assert values["integer_reference"] is None and values["sizes"][0]["ratio"] is None
    assert values["run"] == "runs/plain" and values["passed"] is True


def test_the_record_is_json_without_infinities(loader, tmp_path):
    model = small_net()
    file = write_qdq(model, tmp_path / "inference.onnx", damaged_stem)
    candidate = Candidate("openvino", OnnxRuntimeEngine(file), onnx=file)
    report = verify(model, [candidate], loader, progress=ProgressBar())
    values = json.loads(json.dumps(report_values(report, [Size("ONNX", 25, 100)]), allow_nan=False))
    (engine,) = values["engines"]
    assert values["passed"] is False and engine["passed"] is False and engine["wrong_layers"] == ["stem"]
    assert engine["layers"][0]["by_itself"]["sqnr_db"] is None, "equal: no finite number of decibels"
    assert math.isclose(values["sizes"][0]["ratio"], 4)
    assert values["integer_reference"]["unequal"] == 0


def by_rounding(model, amount):
    """Answers as the model's own, with noise that has nothing to do with the image."""
    own, rng = model_answer(model), np.random.default_rng(2)

    def run(images):
        logits = own(images)
        return (logits + rng.normal(0, amount * logits.std(), logits.shape)).astype(np.float32)

    return run


def test_near_ties_do_not_fail_an_engine_whose_layers_are_sound(tmp_path):
    """Half of the images are (nearly) ties: the model gives two classes the same."""
    model = small_net()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (400, 8, 8, 3), np.uint8)
    loader = _loader(images, rng.integers(0, 4, 400))
    file = write_qdq(model, tmp_path / "inference.onnx")
    engine = OnnxRuntimeEngine(file, threads=1)
    noisy = by_rounding(model, 0.03)
    layered = Answering(noisy)
    layered.run_with = engine.run_with
    candidate = Candidate("onnxruntime", layered, onnx=file)
    report = verify(model, [candidate], loader, latency=False, limit=0.999)
    (found,) = report.engines
    assert found.result.agreement < 0.999 and found.layers is not None and found.wrong_layers == []
    assert report.by_chance(found) and report.failing == []
    assert "near-ties" in report.verdict(found) and "equal within chance" in report.verdict(found)
    assert report_values(report, [])["engines"][0]["by_chance"] is True
    plain = Candidate("paddle", Answering(by_rounding(model, 0.03)))  # nobody can look into its layers
    assert verify(model, [plain], loader, latency=False, limit=0.999).failing != []
