from __future__ import annotations

import shutil

import pytest

from tests.support.commands import LINE
from tests.support.qdq import QdqGraph


def test_one_image(run, trained, lite):
    image = lite / "val" / "circle" / "circle_0.jpg"
    result = run("lowbit", "infer", trained / "export", image)
    assert result.code == 0, result
    assert LINE.match(result.out.splitlines()[0])
    assert result.out.startswith(f"image_name: {image}, ")


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_folder_in_batches_of_any_size(run, trained, lite, batch_size):
    result = run("lowbit", "infer", trained / "export", lite / "val", "--batch-size", batch_size)
    lines = result.out.splitlines()
    assert len(lines) == 16
    assert all(LINE.match(line) for line in lines)


def test_names_of_the_best_classes(run, trained, lite):
    result = run("lowbit", "infer", trained / "export", lite / "val" / "circle" / "circle_0.jpg", "--topk", 4)
    for name in ("circle", "cross", "square", "triangle"):
        assert name in result.out.split("\n", 1)[1]


def test_benchmark_report_after_the_answers(run, trained, lite):
    arguments = ["--benchmark", "--warmup", 1, "--batch-size", 4, "--no-onednn"]
    result = run("lowbit", "infer", trained / "export", lite / "val", *arguments)
    assert result.code == 0, result
    assert len([line for line in result.out.splitlines() if LINE.match(line)]) == 16
    for word in ("batch_size: 4", "data_num: 16", "enable_mkldnn: False", "inference_time(ms)"):
        assert word in result.out


@pytest.mark.parametrize(
    ("model", "image", "message"),
    [
        ("nowhere", "val", "the model folder nowhere does not exist"),
        ("empty", "val", "no inference.json in empty"),
        ("export", "nowhere.jpg", "no image or folder nowhere.jpg"),
        ("export", "empty", "empty"),
        ("export", "notes.jpg", "notes.jpg"),
        ("broken", "val", "inference.pdiparams"),
    ],
)
def test_mistakes(run, trained, lite, tmp_path, monkeypatch, model, image, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "export").symlink_to(trained / "export")
    (tmp_path / "val").symlink_to(lite / "val")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.jpg").write_text("no picture")
    shutil.copytree(trained / "export", tmp_path / "broken")
    (tmp_path / "broken" / "inference.pdiparams").unlink()
    assert message in run("lowbit", "infer", model, image).error


def test_a_gpu_that_is_not_there(run, trained, lite):
    assert (
        "is not available" in run("lowbit", "infer", trained / "export", lite / "val", "--device=gpu").error
    )


def test_without_images(run, trained):
    assert run("lowbit", "infer", trained / "export").code == 2


def test_a_quantized_folder_runs_in_integers(run, trained, lite, tmp_path, monkeypatch):
    image = lite / "val" / "circle" / "circle_0.jpg"
    shutil.copytree(trained / "export", tmp_path / "export")
    graph = QdqGraph(["N", 3, "H", "W"], 0)
    mean = graph.add("GlobalAveragePool", graph.conv(graph.values("x", 0.02, 128), 4, 3, bits=7))
    graph.save(tmp_path / "export" / "inference.onnx", [graph.add("Flatten", mean)])
    command = ("lowbit", "infer", tmp_path / "export", image)
    result = run(*command)
    note, line = result.out.splitlines()
    assert "lowbit's runtime" in note and LINE.match(line)
    assert run(*command, "--quiet").out.splitlines() == [line]
    assert run(*command, "--engine=lowbit").out.splitlines() == [line]
    simulated = run(*command, "--engine=paddle").out.splitlines()
    assert len(simulated) == 1 and simulated[0] != line  # this folder's Paddle model is another one
    monkeypatch.setattr("lowbit.api.evaluation.why_missing", lambda: "no compiler")
    loud, *rest = run(*command).out.splitlines()
    assert loud.startswith("SIMULATED IN FLOATS") and "no compiler" in loud and rest == simulated
