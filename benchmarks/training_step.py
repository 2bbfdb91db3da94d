"""What lowbit's loop costs: its training step against a bare Paddle loop with the same model and batch.

Both train in one process, in turns of a few steps, so that whatever else the machine does falls on both.
lowbit's side is the real loop: JPEG files, loader, seeding, checks for NaN, metrics and log included; the
bare one has its images in memory. `lowbit` multiplies with Paddle's own convolutions, as the bare loop does;
`fast` is what `lowbit train` runs, with oneDNN's.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --case resnet20 --rounds 15
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import paddle

from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.process_settings import apply_amd_fix
from lowbit.bench.run import ratio, take_turns
from lowbit.config import validate
from lowbit.training.checkpoint_manager import CheckpointManager
from lowbit.training.display import PlainDisplay
from lowbit.training.loop import train_epoch
from lowbit.training.metrics import HealthLog
from lowbit.training.process import Interruption
from lowbit.training.run_directory import RunDirectory
from lowbit.training.session import Session, open_session


@dataclass(frozen=True)
class Case:
    model: str
    side: int
    batch_size: int
    steps: int  # a turn


CASES = {
    "resnet18": Case("resnet18", 224, 16, 2),
    "mobilenet_v3_small": Case("mobilenet_v3_small", 224, 16, 4),
    "resnet20": Case("resnet20", 32, 128, 4),
}


def write_images(folder: Path, case: Case) -> None:
    """As many JPEGs as a turn needs, already of the model's size."""
    rng = np.random.default_rng(0)
    for number in range(case.batch_size * case.steps):
        path = folder / "train" / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (case.side // 8, case.side // 8, 3), np.uint8)
        cv2.imwrite(str(path), cv2.resize(noise, (case.side, case.side)))


def open_case(case: Case, folder: Path) -> Session:
    dataset = {"name": "AutoDataset", "path": str(folder), "split": "train"}
    values = {
        "Global": {"output_dir": str(folder), "use_visualdl": False},
        "Arch": {"name": case.model, "class_num": 10},
        "Optimizer": {"name": "Momentum", "lr": {"learning_rate": 0.01}, "regularizer": {"coeff": 1e-4}},
        "DataLoader": {
            "Train": {
                "dataset": dataset | {"transform_ops": [{"NormalizeImage": {}}]},
                "sampler": {"batch_size": case.batch_size},
                "loader": {"num_workers": 2},
            }
        },
    }
    return open_session(validate(values, {}, "benchmark"))


class Lowbit:
    """The real loop over an epoch, which is a turn."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self.manager = CheckpointManager(RunDirectory(folder, "checkpoints"), session)

    def fast_turn(self) -> None:
        with fast_convolutions():
            self.turn()

    def turn(self) -> None:
        self.session.progress.batch, self.session.progress.meter = 0, []
        train_epoch(
            self.session, self.manager, PlainDisplay(silent=True), Interruption(), HealthLog(self.session)
        )


class Bare:
    """What a user would write by hand."""

    def __init__(self, session: Session) -> None:
        self.model = session.model  # the same object: the same kernels, the same memory
        self.batches = [(batch.images, batch.labels) for batch in session.train_loader.epoch(0)]
        self.optimizer = paddle.optimizer.Momentum(
            0.01, 0.9, parameters=self.model.parameters(), weight_decay=1e-4
        )

    def turn(self) -> None:
        self.model.train()
        for images, labels in self.batches:
            logits = self.model(paddle.to_tensor(images))
            loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(labels))
            loss.backward()
            self.optimizer.step()
            self.optimizer.clear_grad()


def measure(name: str, case: Case, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        write_images(folder, case)
        session = open_case(case, folder)
        lowbit, bare = Lowbit(session, folder), Bare(session)
        sides = {"lowbit": lowbit.turn, "bare": bare.turn, "fast": lowbit.fast_turn}
        times = take_turns(sides, rounds)
    bare_time = statistics.median(times["bare"]) / case.steps * 1e3
    print(f"{name:20} {case.side:4}² batch {case.batch_size:4}  bare {bare_time:8.1f} ms", flush=True)
    for side in ("lowbit", "fast"):
        time = statistics.median(times[side]) / case.steps * 1e3
        print(f"    {side:8} {time:8.1f} ms  {ratio(times, side, 'bare')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(apply_amd_fix().message)
    for name in options.case or CASES:
        measure(name, CASES[name], options.rounds)


if __name__ == "__main__":
    main()
