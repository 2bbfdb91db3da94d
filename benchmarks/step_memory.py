"""How much memory a training step takes at its peak: in few bits and in fp32, against Paddle's fp32.

Every side trains in a process of its own. Two figures, both minus what is there when the model, its
optimizer's state and the images are: `tensors` is what Paddle's allocator has given out at most; `resident`
is what the process holds at most (the system's high-water mark without the programs themselves), which counts
kernels' scratch memory and what the C library has not given back, too. Gradients count in both.

    python benchmarks/step_memory.py
    python benchmarks/step_memory.py --case resnet20 --side paddle --side w4a4g4
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"
STEPS = 3


@dataclass(frozen=True)
class Case:
    model: str
    side: int
    batch_size: int


@dataclass(frozen=True)
class Side:
    """What trains: the convolutions and batch norms of Paddle or of lowbit, and a recipe."""

    lowbit: bool = True
    recipe: str | None = None


CASES = {"resnet18": Case("resnet18", 224, 16), "resnet20": Case("resnet20", 32, 128)}
SIDES = {
    "paddle": Side(lowbit=False),
    "fp32": Side(),
    "w8a8g8": Side(recipe="qt_W8_minmax_det__A8_minmax_det__G8_minmax_sto.yaml"),
    "w4a4g4": Side(recipe="qt_w4a4g4.yaml"),
}


def train(case: Case, side: Side) -> dict[str, float]:
    """A few steps in this process; the megabytes that they add at most."""
    import paddle
    from paddle.base import core
    from paddle.nn import functional as F

    from lowbit.accel.convolutions import fast_convolutions
    from lowbit.accel.norm_ops import fast_norm_ops
    from lowbit.accel.process_settings import apply_amd_fix, keep_freed_memory
    from lowbit.config.optimizer import OptimizerSection
    from lowbit.models import build_model
    from lowbit.nn import prepare
    from lowbit.nn.fused_blocks import fuse
    from lowbit.recipe import load_recipe
    from lowbit.training.optimizers import build_optimizer, create_state

    apply_amd_fix()
    paddle.seed(0)
    images = paddle.randn([case.batch_size, 3, case.side, case.side])
    labels = paddle.randint(0, 10, [case.batch_size])
    model = build_model(case.model, 10)
    if side.recipe:
        prepare(model, load_recipe(str(RECIPES / side.recipe)), images[:1])
    optimizer = build_optimizer(OptimizerSection(), model)
    create_state(optimizer)
    with ExitStack() as open_:
        if side.lowbit:
            fuse(model)  # as `lowbit train` does
            keep_freed_memory()
            open_.enter_context(fast_convolutions())
            open_.enter_context(fast_norm_ops())
        model.train()
        tensors, anonymous = core.host_memory_stat_current_value("Allocated", 0), resident("RssAnon")
        core.host_memory_stat_reset_peak_value("Allocated", 0)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        for _ in range(STEPS):
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad(set_to_zero=False)
    most = core.host_memory_stat_peak_value("Allocated", 0)
    return {
        "tensors": (most - tensors) / 2**20,
        "resident": resident("VmHWM") - resident("RssFile") - anonymous,
    }


def resident(word: str) -> float:
    """Of /proc/self/status, in megabytes."""
    found = re.search(rf"^{word}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found.group(1)) / 1024


def in_a_new_process(case: str, side: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", "--case", case, "--side", side]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case} {side} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; repeatable")
    parser.add_argument("--side", choices=SIDES, action="append", help="only this one; repeatable")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(train(CASES[options.case[0]], SIDES[options.side[0]])))
        return
    for name in options.case or CASES:
        case, base = CASES[name], None
        print(f"{name}: {case.side}², batch {case.batch_size}")
        for side in options.side or SIDES:
            used = in_a_new_process(name, side)
            base = base or used
            figures = (f"{what} {mb:4.0f} MB, ratio {mb / base[what]:.3f}" for what, mb in used.items())
            print(f"  {side:8} {'; '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
