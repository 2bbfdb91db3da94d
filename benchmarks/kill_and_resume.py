"""Runs killed with SIGKILL and resumed end as runs that were left alone: python benchmarks/kill_and_resume.py

A small network is trained on digits in six ways (fp32, LSQ, W4A4G4, bf16, fp16, two processes), each once
without a disturbance. Then runs are killed, half of them at a random moment, half of them while a checkpoint
is being written, and resumed with `--resume auto`. Weights, optimizer state, loss scale and progress must be
equal bit for bit. `--count 100` prints how many were.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from paddle import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from lowbit.training.checkpoint import COMPANIONS, read_checkpoint

ROOT = Path(__file__).parents[1]
LAUNCH_TWO = ("-m", "paddle.distributed.launch", "--nproc_per_node=2", "--backend=gloo")
WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "LSQ": {"Recipe": str(ROOT / "recipes/qat_w4a4.yaml")},
    "W4A4G4": {"Recipe": str(ROOT / "recipes/qt_w4a4g4.yaml")},
    "bf16": {"AMP": {"level": "O1", "dtype": "bf16"}},
    "fp16": {"AMP": {"level": "O2", "dtype": "fp16"}},
    "two processes": {},
}
PATIENCE = 600  # seconds until a run counts as hung


class SmallNet(nn.Layer):
    """Four layers, so that some are neither the first nor the last; batch norm, a residual sum, dropout."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(3, 8, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2D(8)
        self.conv2 = nn.Conv2D(8, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2D(8)
        self.conv3 = nn.Conv2D(8, 8, 3, stride=2, padding=1)
        self.norm3 = nn.BatchNorm2D(8)
        self.pool = nn.AdaptiveAvgPool2D(4)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(128, num_classes)

    def forward(self, x):
        x = nn.functional.relu(self.norm1(self.conv1(x)))
        x = nn.functional.relu(self.norm2(self.conv2(x)) + x)
        x = nn.functional.relu(self.norm3(self.conv3(x)))
        return self.head(self.drop(self.pool(x).flatten(1)))


@dataclass
class Run:
    """A training process, or two with their launcher, in a process group of its own."""

    folder: Path
    process: subprocess.Popen

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def log(self) -> str:
        files = [self.folder / "log.txt", *sorted(self.folder.glob("ranks/workerlog.*"))]
        return "\n".join(file.read_text(errors="replace") for file in files if file.is_file())

    def wait_for_first_step(self) -> bool:
        return self._wait(lambda: "[Epoch 0, iter: 1]" in self.log())

    def wait_for_write(self, count: int) -> bool:
        """Until the `count`-th time that a checkpoint's file is being written."""
        seen: set[int] = set()

        def writing() -> bool:
            for entry in os.scandir(self.checkpoints):
                if entry.name.endswith(".part"):
                    seen.add(entry.inode())
            return len(seen) >= count

        return self._wait(writing, pause=0)

    def _wait(self, condition, pause: float = 0.02) -> bool:
        """Whether the condition came true before the run ended."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < end:
            if condition():
                return True
            time.sleep(pause)
        return False

    def kill(self) -> bool:
        """Whether there was something left to kill."""
        alive = self.process.poll() is None
        if alive:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return alive


def start(folder: Path, way: str, *, resume: bool) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.in.yaml"
    config.write_text(yaml.safe_dump(_config(folder, way)))
    launcher = (*LAUNCH_TWO, "--log_dir", str(folder / "ranks")) if way == "two processes" else ()
    command = [sys.executable, *launcher, "-m", "lowbit", "train", "-c", str(config)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
    with (folder / "log.txt").open("a") as log:
        process = subprocess.Popen(
            [*command, "--resume", "auto"] if resume else command,
            cwd=ROOT,
            env=environment | {"PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Run(folder, process)


def _config(folder: Path, way: str) -> dict[str, Any]:
    normalize = {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    train = {"name": "Digits", "transform_ops": [{"RandomCropImage": {"size": 32, "padding": 4}}, normalize]}
    evaluation = {"name": "Digits", "split": "val", "transform_ops": [normalize]}
    batch = 32 if way == "two processes" else 64
    settings = {"output_dir": str(folder), "epochs": 3, "save_steps": 2, "print_batch_step": 1}
    return {
        "Global": settings | {"use_visualdl": False, "image_shape": [3, 32, 32]},
        "Arch": {"name": "benchmarks.kill_and_resume:SmallNet", "class_num": 10},
        "Optimizer": {"lr": {"name": "Cosine", "learning_rate": 0.1}, "regularizer": {"coeff": 1e-4}},
        "DataLoader": {
            "Train": {
                "dataset": train,
                "sampler": {"batch_size": batch, "shuffle": True},
                "loader": {"num_workers": 2},
            },
            "Eval": {
                "dataset": evaluation,
                "sampler": {"batch_size": 128},
                "loader": {"num_workers": 2},
            },
        },
        **WAYS[way],
    }


def finish(run: Run) -> None:
    if run.process.wait(timeout=PATIENCE):
        sys.exit(f"a run has failed:\n{run.log()}")


def final_state(folder: Path) -> dict[str, bytes | str]:
    """All that must be equal: every tensor's bytes, progress, loss scale, and the files for Paddle."""
    path = folder / "checkpoints" / "latest.lowbit"
    read = read_checkpoint(path)
    state: dict[str, bytes | str] = {f"model {name}": array.tobytes() for name, array in read.model.items()}
    state |= {f"optimizer {name}": array.tobytes() for name, array in read.optimizer.items()}
    state |= {f"file {suffix}": path.with_suffix(suffix).read_bytes() for suffix in COMPANIONS}
    return state | {"progress": repr(read.progress), "scaler": repr(read.scaler)}


def trial(folder: Path, way: str, while_writing: bool, calm: dict[str, bytes | str], seconds: float) -> str:
    """Kills one run and resumes it: "equal", or what differs."""
    dice = random.Random()
    while True:
        run = start(folder, way, resume=False)
        if not run.wait_for_first_step():
            sys.exit(f"a run ended before its first step:\n{run.log()}")
        if while_writing:
            run.wait_for_write(dice.randint(1, 100))
        else:
            time.sleep(dice.uniform(0, seconds))
        if run.kill():
            break
    left = sum(1 for _ in run.checkpoints.glob(".*.part"))
    finish(start(folder, way, resume=True))
    found = final_state(folder)
    different = [name for name in calm if found.get(name) != calm[name]]
    outcome = f"DIFFERENT in {', '.join(different[:3])}" if different else "equal"
    return f"{outcome}{', killed while a checkpoint was written' if left else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="runs to kill, over all ways")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lowbit-kill-") as name:
        folder, calm, seconds = Path(name), {}, {}
        for way in WAYS:
            run = start(folder / f"calm {way}", way, resume=False)
            run.wait_for_first_step()
            begun = time.monotonic()
            finish(run)
            calm[way], seconds[way] = final_state(run.folder), time.monotonic() - begun
            print(f"undisturbed: {way}, {seconds[way]:.1f} s after the first step", flush=True)

        def one(number: int) -> tuple[str, str]:
            way = list(WAYS)[number % len(WAYS)]
            writing = number // len(WAYS) % 2 == 0
            outcome = trial(folder / f"killed {number}", way, writing, calm[way], seconds[way])
            print(f"{number + 1}: {way}: {outcome}", flush=True)
            return way, outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(one, range(options.count)))
    equal = Counter(way for way, outcome in outcomes if outcome.startswith("equal"))
    tried = Counter(way for way, _ in outcomes)
    for way in tried:
        print(f"{way}: {equal[way]} of {tried[way]}")
    writing = sum("written" in outcome for _, outcome in outcomes)
    print(f"bit-exact: {equal.total()} of {tried.total()}; killed while a checkpoint was written: {writing}")
    sys.exit(equal.total() != tried.total())


if __name__ == "__main__":
    main()
