"""The benchmark report that Paddle's chain test reads (AutoLog), and the timer behind it."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil

from lowbit.deploy.engines.engine import Engine
from lowbit.machine import PaddleBuild, paddle_build

Stage = Literal["preprocess", "inference", "postprocess"]
STAGES: tuple[Stage, ...] = ("preprocess", "inference", "postprocess")


@dataclass
class StageTimer:
    """Wall-clock seconds per stage, one entry per batch; what is not inside `stage` is not counted.

    timer = StageTimer()
    with timer.stage("inference"):
        engine.run(batch)
    """

    seconds: dict[Stage, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    images: int = 0
    peak_memory: int = 0  # bytes, the largest seen at the end of a stage

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage].append(time.perf_counter() - start)
        self.peak_memory = max(self.peak_memory, psutil.Process().memory_info().rss)

    @property
    def total(self) -> float:
        """Seconds in all stages together."""
        return sum(map(sum, self.seconds.values()))

    def mean(self, stage: Stage) -> float:
        """Seconds per batch."""
        times = self.seconds[stage]
        return sum(times) / len(times) if times else 0.0


# The report, in the format of the AutoLog package, its misspelt `drivier_version` included.
#
# Times are means per batch. What was not measured is None.


_LOG_API_VERSION = "1.0"
_MB = 2**20


def benchmark_report(
    timer: StageTimer,
    engine: Engine,
    *,
    model_name: str,
    batch_size: int,
    build: PaddleBuild | None = None,
    now: datetime | None = None,
) -> list[str]:
    """The lines of the report, each behind date and `root INFO:`.

    timer = StageTimer()
    infer_images(engine, paths, ops, batch_size=4, timer=timer)
    print(*benchmark_report(timer, engine, model_name="resnet18", batch_size=4), sep="\\n")
    """
    build = build or paddle_build()
    options = engine.options
    shape = "dynamic" if engine.image_shape is None else list(engine.image_shape)
    sections: list[tuple[str, list[str]]] = [
        (
            "---------------------- Env info ----------------------",
            [
                f"OS_version: {_os_version()}",
                f"CUDA_version: {build.cuda}",
                f"CUDNN_version: {build.cudnn}",
                f"drivier_version: {_driver_version()}",
            ],
        ),
        (
            "---------------------- Paddle info ----------------------",
            [
                f"paddle_version: {build.version}",
                f"paddle_commit: {build.commit}",
                f"log_api_version: {_LOG_API_VERSION}",
            ],
        ),
        (
            "----------------------- Conf info -----------------------",
            [
                f"runtime_device: {options.device.split(':')[0]}",
                f"ir_optim: {options.optimize}",
                f"enable_memory_optim: {options.memory_optim}",
                f"enable_tensorrt: {options.tensorrt}",
                f"enable_mkldnn: {options.onednn}",
                f"cpu_math_library_num_threads: {options.threads}",
            ],
        ),
        (
            "----------------------- Model info ----------------------",
            [f"model_name: {model_name}", f"precision: {options.precision}"],
        ),
        (
            "----------------------- Data info -----------------------",
            [f"batch_size: {batch_size}", f"input_shape: {shape}", f"data_num: {timer.images}"],
        ),
        (
            "----------------------- Perf info -----------------------",
            [
                f"cpu_rss(MB): {round(timer.peak_memory / _MB, 4)}, gpu_rss(MB): None, gpu_util: None%",
                f"total time spent(s): {round(timer.total, 4)}",
                ", ".join(
                    f"{stage}_time(ms): {round(timer.mean(stage) * 1e3, 4)}" for stage in timer.seconds
                ),
            ],
        ),
    ]
    prefix = f"[{(now or datetime.now()):%Y/%m/%d %H:%M:%S}] root INFO: "
    return [prefix + line for title, body in sections for line in (title, *(f" {item}" for item in body))]


def _os_version() -> str:
    try:
        release = platform.freedesktop_os_release()
        return f"{release.get('NAME', 'Linux')} {release.get('VERSION_ID', '')}".strip()
    except OSError:  # not Linux, or a container without the file
        return platform.platform(terse=True)


def _driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The NVIDIA driver's version from "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05 …"."""
    try:
        words = file.read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), None)
