"""The scripts as the ecosystem's chain test starts them: processes of their own, from another folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lowbit.machine import cpu_info
from tests.support.commands import ACCURACY, LINE, STEP

ROOT = Path(__file__).parents[2]


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, str(ROOT / script), *map(str, arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def start(tmp_path):
    """Starts a script in a folder that is not ours; whatever still runs at the end is stopped."""
    started: list[subprocess.Popen] = []

    def call(script: str, *arguments: object) -> subprocess.Popen:
        process = subprocess.Popen(
            command(script, *arguments),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


def test_train_evaluate_export_infer(start, lite, tmp_path):
    def finish(script: str, *arguments: object) -> str:
        process = start(script, *arguments)
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, out + err
        assert "Traceback" not in err
        return out

    (tmp_path / "lite_data").symlink_to(lite)
    sizes = ["--crop-size=64", "--resize-size=72"]
    data = ["--data-path=./lite_data", "--workers=2"]

    out = finish(
        "train.py", *data, *sizes, "--output-dir=./out", "--epochs=2", "--batch-size=4", "--print-freq=2"
    )
    steps = STEP.findall(out)
    assert [re.match(r"\[Epoch \d, iter: \d\]", step).group() for step in steps] == [
        "[Epoch 0, iter: 2]",
        "[Epoch 0, iter: 4]",
        "[Epoch 1, iter: 2]",
        "[Epoch 1, iter: 4]",
    ]
    assert len(ACCURACY.findall(out)) == 2
    trained = ACCURACY.findall(out)[-1]

    out = finish("train.py", "--test-only", *data, *sizes, "--pretrained=./out/latest.pdparams")
    assert ACCURACY.findall(out) == [trained]

    finish("tools/export_model.py", "--pretrained=./out/latest.pdparams", "--save-inference-dir=./out")
    assert {"inference.json", "inference.pdiparams", "inference.yml"} <= {
        file.name for file in (tmp_path / "out").iterdir()
    }

    options = ["--use-gpu=False", "--model-dir=./out", "--batch-size=2", "--benchmark=True"]
    images = "./lite_data/val/circle"
    out = finish("deploy/inference_python/infer.py", *options, f"--img-path={images}")
    lines = [line for line in out.splitlines() if LINE.match(line)]
    assert [line.split(",")[0] for line in lines] == [
        f"image_name: {images}/circle_{number}.jpg" for number in range(4)
    ]
    report = r"^\[\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\] root INFO: .*inference_time\(ms\): \d+\.\d+"
    assert re.search(report, out, re.MULTILINE)


def test_two_runs_into_one_folder_and_an_interruption(start, run, lite, tmp_path, processor):
    options = [
        "--model=tests.support.tiny_net:TinyNet",
        "--data-path",
        lite,
        "--output-dir",
        tmp_path / "out",
    ]
    options += ["--epochs=100000", "--batch-size=8", "--workers=2", "--crop-size=32", "--resize-size=36"]
    first = start("train.py", *options)
    opening = first.stdout.readline()
    if cpu_info().is_amd:
        assert opening.startswith("AMD fix applied")
        opening = first.stdout.readline()
    assert opening.startswith("Training tests.support.tiny_net:TinyNet (4 classes) on cpu, convolutions in ")
    assert STEP.match(first.stdout.readline().strip())
    assert ACCURACY.search(first.stdout.readline().rstrip())

    message = run("train.py", *options).error  # the second one, while the first runs
    assert f"another run (process {first.pid}) is writing into {tmp_path / 'out'}" in message
    assert "wait for it or give another output folder" in message

    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=600)
    assert first.returncode == 130, out + err
    assert "Traceback" not in err
    assert re.search(
        r"interrupted\. The last good checkpoint is .*latest\.lowbit \(continue with --resume", out
    )

    resumed = run("train.py", *options, "--epochs=1", "--resume=auto")
    assert resumed.code == 0, resumed
    assert "resumed from" in resumed.out


def test_a_mistake_ends_a_script_with_2_and_no_traceback(start):
    process = start("train.py", "--data-path=./nowhere")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 2, out + err
    assert err == "error: nowhere: no such folder; give the folder that holds the data, or `digits`\n"
    assert out == ""
