"""What quantization-aware training costs: a step of it against the same model's step in fp32.

Beside lowbit's, the same quantization in PaddleSlim's manner: a tensor goes through ten operators. All sides
train in one process, in turns of a step, so that whatever else the machine does falls on all of them.

    python benchmarks/qat_step.py
    python benchmarks/qat_step.py --case resnet20-w4a4-lsq --rounds 15
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.accel.convolutions import convolution_library, fast_convolutions
from lowbit.accel.process_settings import apply_amd_fix
from lowbit.bench.run import ratio, take_turns
from lowbit.kernels import kernels, why_missing
from lowbit.models import build_model
from lowbit.nn import calibrate, prepare
from lowbit.recipe import load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class Case:
    model: str
    side: int
    batch_size: int
    recipe: str
    composed: bool = False  # whether to compare with composed operators, which are PACT's here


CASES = {
    "resnet18-w8a8-pact": Case("resnet18", 224, 16, "qat_w8a8.yaml", composed=True),
    "resnet20-w8a8-pact": Case("resnet20", 32, 128, "qat_w8a8.yaml", composed=True),
    "resnet20-w4a4-lsq": Case("resnet20", 32, 128, "qat_w4a4.yaml"),
}


class ComposedConv2D(nn.Layer):
    """PACT and 8 bits as PaddleSlim writes them: plain operators, each a pass over the tensor."""

    def __init__(self, conv: nn.Conv2D) -> None:
        super().__init__()
        self.conv = conv
        self.alpha = self.create_parameter([1], default_initializer=nn.initializer.Constant(20.0))
        for name in ("state", "accum"):
            self.register_buffer(name, paddle.ones([1]))

    def forward(self, x: Tensor) -> Tensor:
        x = x - F.relu(x - self.alpha) + F.relu(-self.alpha - x)
        largest = paddle.max(paddle.abs(x.detach()))
        self.state.set_value(self.state * 0.9 + 1)
        self.accum.set_value(self.accum * 0.9 + largest)
        conv = self.conv
        weight = conv.weight
        return F.conv2d(
            self._fake_quantize(x, self.accum / self.state),
            self._fake_quantize(weight, paddle.max(paddle.abs(weight.detach()), [1, 2, 3], True)),
            conv.bias,
            conv._stride,
            conv._padding,
            conv._dilation,
            conv._groups,
        )

    @staticmethod
    def _fake_quantize(x: Tensor, largest: Tensor) -> Tensor:
        fixed = x.detach()
        on_grid = paddle.round(paddle.clip(fixed / largest, -1.0, 1.0) * 127) * largest / 127
        return x + (on_grid - fixed)


def compose(model: nn.Layer) -> nn.Layer:
    """The model with every Conv2D in that manner; the one Linear layer at its end is left alone."""
    for name, layer in list(model.named_sublayers()):
        if isinstance(layer, nn.Conv2D):
            parent, _, last = name.rpartition(".")
            owner = model
            for part in filter(None, parent.split(".")):
                owner = getattr(owner, part)
            setattr(owner, last, ComposedConv2D(layer))
    return model


def step_of(model: nn.Layer, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A function that trains one step."""
    optimizer = paddle.optimizer.Momentum(0.001, 0.9, parameters=model.parameters(), weight_decay=1e-4)

    def step() -> None:
        model.train()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def measure(name: str, case: Case, rounds: int, clock: Callable[[], float]) -> None:
    paddle.seed(0)
    images = paddle.randn([case.batch_size, 3, case.side, case.side])
    labels = paddle.randint(0, 10, [case.batch_size])

    def new() -> nn.Layer:
        return build_model(case.model, 10)

    quantized = prepare(new(), load_recipe(str(RECIPES / case.recipe)))
    calibrate(quantized, [images])
    sides = {"fp32": step_of(new(), images, labels), "lowbit": step_of(quantized, images, labels)}
    if case.composed:
        sides["composed"] = step_of(compose(new()), images, labels)
    times = take_turns(sides, rounds, clock)
    print(f"{name}: {case.side}², batch {case.batch_size}")
    for side in sides:
        against = "" if side == "fp32" else ratio(times, side, "fp32")
        print(f"  {side:9} {statistics.median(times[side]) * 1e3:8.1f} ms a step  {against}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--paddle-convolutions", action="store_true", help="Paddle's own, not oneDNN's")
    parser.add_argument(
        "--processor-time", action="store_true", help="of the training thread, for a machine with other work"
    )
    options = parser.parse_args()
    clock = time.thread_time if options.processor_time else time.perf_counter
    print(apply_amd_fix().message)
    found = kernels()
    print(f"kernels: {f'none ({why_missing()})' if found is None else found.variant}")
    wanted = not options.paddle_convolutions
    print(f"convolutions: {convolution_library(wanted=wanted)}")
    with fast_convolutions(wanted=wanted):
        for name in options.case or CASES:
            measure(name, CASES[name], options.rounds, clock)


if __name__ == "__main__":
    main()
