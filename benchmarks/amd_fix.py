"""The AMD fix: time of an fp32 ResNet18 training step with it / without it, step by step in turn.

The matrix library reads the setting once per process, so each side has its own child process; the parent lets
one compute while the other waits, A B A B …, and compares neighbours. On a processor that is not AMD's the
ratio is measured too, but lowbit does not apply the fix there.

    python benchmarks/amd_fix.py                   # about 2 minutes; --batch 4 --steps 3 is quicker
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lowbit.accel.process_settings import AVX2_PATH, SETTING, SWITCH, decide_amd_fix
from lowbit.machine.cpu import cpu_info


class Side:
    """A child process that trains with or without the setting, one step whenever it is asked to."""

    def __init__(self, fixed: bool, batch: int, size: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name != SETTING}
        environment |= {SETTING: AVX2_PATH} if fixed else {SWITCH: "0"}
        command = [sys.executable, __file__, "--child", f"--batch={batch}", f"--size={size}"]
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def step(self) -> float:
        """Seconds that one training step took."""
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"a measuring process ended early with code {self.process.wait()}")
        return float(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def train_on_request(batch: int, size: int) -> None:
    """The child: a training step for every line on standard input."""
    import paddle

    paddle.seed(0)
    model = paddle.vision.models.resnet18()
    optimizer = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
    images = paddle.randn([batch, 3, size, size])
    labels = paddle.randint(0, 1000, [batch])
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = paddle.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        float(loss)
        print(time.perf_counter() - start, flush=True)


def compare(batch: int, size: int, steps: int) -> None:
    sides = {True: Side(True, batch, size), False: Side(False, batch, size)}
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(steps + 1):
        for fixed in (number % 2 == 0, number % 2 == 1):  # take turns in going first
            seconds = sides[fixed].step()
            if number:  # the first step prepares memory and kernels
                times[fixed].append(seconds)
    for side in sides.values():
        side.close()
    ratios = [with_fix / without for with_fix, without in zip(times[True], times[False], strict=True)]
    cpu = cpu_info()
    print(f"processor: {cpu.model} ({cpu.vendor or 'vendor unknown'})")
    print(f"ResNet18, fp32 training step, batch {batch} at {size}x{size}, {steps} steps each in turn")
    print(f"with {SETTING}={AVX2_PATH}: {statistics.median(times[True]) * 1e3:.0f} ms (median)")
    print(f"without:                {statistics.median(times[False]) * 1e3:.0f} ms (median)")
    ratio = statistics.median(ratios)
    print(f"with / without: {ratio:.3f} (median of pairs; {min(ratios):.3f} to {max(ratios):.3f})")
    if cpu.is_amd:
        print(f"speed-up by the fix: {1 / ratio:.2f}x")
        print(decide_amd_fix().message)
    else:
        print("This is not an AMD processor: lowbit does not apply the fix here, whatever the ratio is.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train_on_request(options.batch, options.size)
    else:
        print(f"{Path(__file__).name}: starting two processes", flush=True)
        compare(options.batch, options.size, options.steps)


if __name__ == "__main__":
    main()
