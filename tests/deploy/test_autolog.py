from __future__ import annotations

import re
from datetime import datetime

import pytest

from lowbit.deploy import EngineOptions, PaddleEngine, StageTimer, benchmark_report
from lowbit.deploy.autolog import STAGES, _driver_version
from lowbit.machine import PaddleBuild

BUILD = PaddleBuild(version="3.3.1", commit="abc", cuda=None, cudnn=None, cards=0)


class Engine:
    name = "test"
    options = EngineOptions(device="cpu", threads=2, onednn=True, memory_optim=True)
    image_shape = (3, 224, 224)


def test_the_report_line_by_line():
    timer = StageTimer(
        seconds={"preprocess": [0.01, 0.03], "inference": [0.1, 0.2], "postprocess": [0.001, 0.0015]},
        images=7,
        peak_memory=300 * 2**20 + 2**19,
    )
    lines = benchmark_report(
        timer, Engine(), model_name="resnet18", batch_size=4, build=BUILD, now=datetime(2026, 1, 2, 3, 4, 5)
    )
    prefix = "[2026/01/02 03:04:05] root INFO: "
    assert all(line.startswith(prefix) for line in lines)
    texts = [line.removeprefix(prefix) for line in lines]
    assert texts.pop(1).startswith(" OS_version: ") and texts.pop(3).startswith(" drivier_version: ")
    assert texts == [
        "---------------------- Env info ----------------------",
        " CUDA_version: None",
        " CUDNN_version: None",
        "---------------------- Paddle info ----------------------",
        " paddle_version: 3.3.1",
        " paddle_commit: abc",
        " log_api_version: 1.0",
        "----------------------- Conf info -----------------------",
        " runtime_device: cpu",
        " ir_optim: True",
        " enable_memory_optim: True",
        " enable_tensorrt: False",
        " enable_mkldnn: True",
        " cpu_math_library_num_threads: 2",
        "----------------------- Model info ----------------------",
        " model_name: resnet18",
        " precision: fp32",
        "----------------------- Data info -----------------------",
        " batch_size: 4",
        " input_shape: [3, 224, 224]",
        " data_num: 7",
        "----------------------- Perf info -----------------------",
        " cpu_rss(MB): 300.5, gpu_rss(MB): None, gpu_util: None%",
        " total time spent(s): 0.3425",
        " preprocess_time(ms): 20.0, inference_time(ms): 150.0, postprocess_time(ms): 1.25",
    ]


def test_a_real_run(exported, images):
    engine = PaddleEngine(exported.directory, onednn=False, threads=1)
    timer = StageTimer()
    with timer.stage("inference"):
        engine.run(images)
    text = "\n".join(benchmark_report(timer, engine, model_name="tiny", batch_size=8))
    assert "enable_mkldnn: False" in text and "cpu_math_library_num_threads: 1" in text
    assert float(re.search(r"inference_time\(ms\): ([\d.]+)", text)[1]) > 0
    assert float(re.search(r"cpu_rss\(MB\): ([\d.]+)", text)[1]) > 50


def test_driver_version(tmp_path):
    file = tmp_path / "version"
    assert _driver_version(file) is None
    file.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    )
    assert _driver_version(file) == "535.104.05"


def test_only_what_is_inside_a_stage_is_counted(monkeypatch):
    clock = iter([10.0, 10.5, 20.0, 21.5, 30.0, 30.25])
    monkeypatch.setattr("lowbit.deploy.autolog.time.perf_counter", lambda: next(clock))
    timer = StageTimer()
    for stage in ("inference", "inference", "postprocess"):
        with timer.stage(stage):
            pass
    assert timer.seconds == {"preprocess": [], "inference": [0.5, 1.5], "postprocess": [0.25]}
    assert timer.mean("inference") == 1.0 and timer.mean("preprocess") == 0.0
    assert timer.total == 2.25
    assert timer.peak_memory > 2**20


def test_a_stage_that_failed_is_not_counted():
    timer = StageTimer()
    with pytest.raises(ZeroDivisionError), timer.stage("inference"):
        raise ZeroDivisionError
    assert timer.total == 0


def test_timers_do_not_share_their_lists():
    with StageTimer().stage("preprocess"):
        pass
    assert all(StageTimer().seconds[stage] == [] for stage in STAGES)
