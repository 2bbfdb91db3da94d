"""What the numerics of mixed precision cost on a CPU: a training step of ResNet20 in each mode against fp32.

python benchmarks/mixed_precision.py
"""

from __future__ import annotations

import argparse
import statistics

from lowbit.accel.process_settings import apply_amd_fix
from lowbit.bench.run import ratio, take_turns
from lowbit.config import validate
from lowbit.training.session import open_session
from lowbit.training.step import TrainingStep

MODES = {
    "fp32": None,
    "bf16 O1": {"level": "O1", "dtype": "bf16"},
    "bf16 O2": {"level": "O2", "dtype": "bf16"},
    "fp16 O1": {"level": "O1", "dtype": "fp16"},
    "fp16 O2": {"level": "O2", "dtype": "fp16"},
}


def open_mode(amp: dict[str, str] | None, batch_size: int):
    """A function that trains one step of ResNet20 on digits in the given mode."""
    values = {
        "AMP": amp,
        "Arch": {"name": "resnet20", "class_num": 10},
        "DataLoader": {
            "Train": {
                "dataset": {"name": "Digits", "transform_ops": [{"NormalizeImage": {}}]},
                "sampler": {"batch_size": batch_size},
            }
        },
    }
    session = open_session(validate(values, {}, "benchmark"))
    session.network.train()
    step, batch = TrainingStep(session), next(session.train_loader.epoch(0))
    return lambda: step(batch, 0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()
    print(apply_amd_fix().message)
    sides = {name: open_mode(amp, options.batch_size) for name, amp in MODES.items()}
    times = take_turns(sides, options.rounds)
    for name in MODES:
        median = statistics.median(times[name]) * 1e3
        print(f"{name:8}  {median:8.1f} ms  {ratio(times, name, 'fp32')}")


if __name__ == "__main__":
    main()
