"""Sections about the deployed models."""

from __future__ import annotations

import json
import re

import pytest

from lowbit.errors import LowbitError
from lowbit.report import deployment, open_run, open_runs
from tests.support.fake_run import write_run


def _rows(text: str) -> list[list[str]]:
    """The cells of all rows, without tags."""
    rows = re.findall(r"<tr>(.*?)</tr>", text)
    return [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[dh].*?</t[dh]>", row)] for row in rows]


def test_the_best_of_each_column_is_marked(tmp_path):
    runs = open_runs([write_run(tmp_path / name) for name in "abc"])
    runs[1].verify["engines"][0]["top1"] = 0.995
    runs[1].verify["sizes"][0]["exported"] = 200_000
    runs[2].verify["passed"] = False
    text = deployment.verdict(runs)
    head, *rows = _rows(text)
    assert head[:7] == ["run", "top-1", "vs fp32", "size", "smaller", "ms", "faster"]
    assert rows[0][:7] == ["1 a", "98.50 %", "0.00", "150.0 KB ★", "7.33x ★", "4", "2.00x"]
    assert rows[1][1:5] == ["99.50 % ★", "+1.00 ★", "200.0 KB", "5.50x"]
    assert [row[7] for row in rows] == ["verified", "verified", "FAILED"]
    assert text.count('class="star"') == 6  # the sizes of a and c are equal
    assert 'id="scatter-size"' in text and 'id="scatter-latency"' in text


def test_an_engine_that_saw_a_sample_says_so(tmp_path):
    run = open_run(write_run(tmp_path / "run"))
    assert "sample" not in deployment.verified([run])
    engines = run.verify["engines"]
    engines.append(
        engines[0] | {"engine": "paddle", "name": "Paddle", "images": 64, "top1": 1.0, "latency": []}
    )
    text = deployment.verified([run])
    assert "saw only a sample" in text and "cannot be compared" in text
    names = [row[0] for row in _rows(text)]
    assert "ONNX Runtime 1.23" in names and "Paddle (64 images)" in names and "Paddle" not in names


def test_a_run_that_is_not_verified_gets_the_command(tmp_path):
    run = open_run(write_run(tmp_path / "my run", verified=False))
    text = deployment.verdict([run])
    assert "Not deployed yet." in text and "top-1 in training" in text and "scatter" not in text
    assert f"lowbit verify &#x27;{run.path}&#x27;" in text
    assert deployment.predictions([run]) == deployment.verified([run]) == ""
    run = open_run(write_run(tmp_path / "verified"))
    del run.verify["predictions"]  # of an older version
    text = deployment.predictions([run])
    assert "not recorded" in text and f"lowbit verify {run.path}" in text


def test_the_confusion_matrix_and_the_images_that_differ(tmp_path):
    run = open_run(write_run(tmp_path / "run"))
    text = deployment.predictions([run])
    assert _rows(text) == [
        *(["", "zero", "one", "two"], ["zero", "70", "", ""]),
        *(["one", "", "69", "1"], ["two", "", "", "60"]),
    ]
    lines = re.findall(r'<span class="(\w*)">(.*?)</span>', text.split("gallery")[1])
    assert lines[:3] == [("", "class one"), ("good", "fp32 one"), ("bad", "quantized two")]
    assert lines[-1] == ("", "onnxruntime two")  # it does not give the trained model's class
    assert text.count("data:image/jpeg;base64,/9j/") == 2
    run.verify["predictions"]["differing"] = None
    assert "--pretrained" in deployment.predictions([run])
    run.verify["predictions"]["differing"] = {"lost": 0, "gained": 0, "both_wrong": 0, "images": []}
    assert "the same class to every image" in deployment.predictions([run])


def test_of_many_classes_the_most_frequent_mistakes_are_listed(tmp_path):
    run = open_run(write_run(tmp_path / "run"))
    found = run.verify["predictions"]
    found["classes"] = [f"class {index}" for index in range(100)]
    found["confusion"]["onnxruntime"] = {"7": {"7": 9, "8": 1, "99": 3}, "8": {"7": 2, "100": 1}}
    assert _rows(deployment.predictions([run])) == [
        *(["class", "predicted", "images"], ["class 7", "class 99", "3"], ["class 8", "class 7", "2"]),
        *(["class 7", "class 8", "1"], ["class 8", "100", "1"]),
    ]


def test_engines_and_sizes(tmp_path):
    run = open_run(write_run(tmp_path / "run"))
    text = deployment.verified([run])
    assert "Verification passed" in text and "200 images are few" in text
    assert "run: ONNX Runtime 1.23, batch 1" in text and "2.00x" in text
    run.verify["engines"][0]["verdict"] = "FAILED: made up"
    assert '<p class="bad">FAILED: made up</p>' in deployment.verified([run])
    assert deployment.sizes([run]).count("<tr>") == 4


def test_advice(tmp_path):
    folder = write_run(tmp_path / "a")
    assert deployment.advice([open_run(folder)]) == ""
    option = {"engine": "openvino", "name": "OpenVINO 1", "format": "onnx", "form": "int8", "bits": "W8A8"}
    option |= {"size": 150_000, "ms": 1.5, "faster": 1.4, "agreement": 0.99, "top1": None, "exact": True}
    advice = {"options": [option], "recommendation": "deploy onnx.", "samples": 200, "threads": 2}
    (folder / "advice.json").write_text(json.dumps(advice), "utf-8")
    text = deployment.advice([open_run(folder)])
    assert "Deploy onnx." in text and "200 samples" in text
    assert _rows(text)[1][:6] == ["OpenVINO 1", "onnx", "W8A8", "1.5", "1.40x", "150.0 KB"]
    (folder / "advice.json").write_text(json.dumps(advice | {"options": [{}]}), "utf-8")
    with pytest.raises(LowbitError, match=r"advice\.json"):
        open_run(folder)
