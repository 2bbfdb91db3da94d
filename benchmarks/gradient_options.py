"""How good a 4-bit gradient is: the weights' gradients with each option, against those without.

ResNet20 on CIFAR-10, weights and inputs in 4 bits on every side; only what is done to the gradient of the
output differs. Of all quantized layers together, over several draws of each batch: the noise of one draw
(its distance from the reference / the reference's length), the bias (that of the draws' mean, less what is
noise in it), and the cosine to the reference. Beside it the step's time, in turns, against the first option.

    python benchmarks/gradient_options.py --data cifar-10-batches-bin --weights resnet20_cifar10.safetensors
    python benchmarks/gradient_options.py --data cifar-10-batches-bin --steps 100  # early in a training
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.bench.run import ratio, take_turns
from lowbit.config import load_config
from lowbit.models import assign_weights, build_model, read_weights
from lowbit.nn import prepare
from lowbit.nn.convert import set_executor
from lowbit.recipe import make_recipe
from lowbit.training.inputs import build_loader, open_section

CONFIG = Path(__file__).parents[1] / "configs" / "resnet20_cifar10.yaml"

# The gradient for grad_input, and the one for grad_weight
Pair = tuple[dict[str, Any], dict[str, Any]]
STOCHASTIC = {"grid": "int4", "rounding": "stochastic"}
ORIGINAL: Pair = ({**STOCHASTIC, "granularity": "NHW"}, {**STOCHASTIC, "granularity": "NC"})
TENSOR = {**STOCHASTIC, "granularity": "per-tensor"}
LOG = {**TENSOR, "grid": "log4"}


def both(spec: dict[str, Any], **more: Any) -> Pair:
    """The same spec for both products."""
    return {**spec, **more}, {**spec, **more}


def with_more(pair: Pair, **more: Any) -> Pair:
    """A pair with a further option."""
    return {**pair[0], **more}, {**pair[1], **more}


OPTIONS: dict[str, Pair] = {
    "per-tensor int4": both(TENSOR),
    "per-tensor int4, nearest": both(TENSOR, rounding="nearest"),
    "original (NHW, NC)": ORIGINAL,
    "original, two samples": with_more(ORIGINAL, samples=2),
    "N and C": ({**STOCHASTIC, "granularity": "N"}, {**STOCHASTIC, "granularity": "C"}),
    "log4 per tensor": both(LOG),
    "log4, hindsight": both(LOG, scaling="hindsight"),
    "log4, two samples": both(LOG, samples=2),
    "per-tensor int4, hindsight": both(TENSOR, scaling="hindsight"),
    "log4 N and C": ({**LOG, "granularity": "N"}, {**LOG, "granularity": "C"}),
    "per-tensor int4, Hadamard": both(TENSOR, rotation="hadamard(16)"),
    "original, Hadamard": with_more(ORIGINAL, rotation="hadamard(16)"),
    "int8 N and C": (
        {**STOCHASTIC, "grid": "int8", "granularity": "N"},
        {**STOCHASTIC, "grid": "int8", "granularity": "C"},
    ),
}


def network(weights: dict[str, np.ndarray], gradients: Pair | None) -> nn.Layer:
    """ResNet20 with 4-bit weights and inputs, and its gradients as given; None: in full."""
    signal = {"grid": "int4", "sign": "auto", "granularity": "N", "observer": "mse"}
    rule: dict[str, Any] = {
        "forward": {"input": signal, "weight": {"grid": "int4", "granularity": "N", "observer": "mse"}},
        "grad_input": {"weight": {"grid": "int4", "granularity": "C", "observer": "mse"}},
        "grad_weight": {"input": signal},
    }
    if gradients:
        rule["grad_input"]["grad_output"], rule["grad_weight"]["grad_output"] = gradients
    model = build_model("resnet20", 10)
    assign_weights(model, weights, source="the benchmark")
    prepare(model, make_recipe({"rules": [rule, {"match": {"index": [0, -1]}, "skip": True}]}))
    set_executor(model, "auto")
    model.train()
    return model


def gradient(model: nn.Layer, images: Tensor, labels: Tensor) -> np.ndarray:
    """The gradients of all quantized weights, one after the other."""
    F.cross_entropy(model(images), labels).backward()
    names = [name for name, weight in model.named_parameters() if weight.ndim == 4][1:]
    weights = dict(model.named_parameters())
    found = np.concatenate([weights[name].grad.numpy().ravel() for name in names]).astype(np.float64)
    model.clear_gradients()
    return found


def quality(draws: list[np.ndarray], reference: np.ndarray) -> tuple[float, float, float]:
    """Noise, bias and cosine of some draws of one gradient."""
    length = float(np.linalg.norm(reference))
    errors = [float(np.sum((draw - reference) ** 2)) for draw in draws]
    mean = np.mean(draws, axis=0)
    spread = sum(float(np.sum((draw - mean) ** 2)) for draw in draws) / (len(draws) - 1)
    # The mean's distance holds the noise of len(draws) draws, too, which is no bias
    bias = max(float(np.sum((mean - reference) ** 2)) - spread / len(draws), 0.0)
    cosines = [float(draw @ reference) / (float(np.linalg.norm(draw)) * length) for draw in draws]
    return math.sqrt(float(np.mean(errors))) / length, math.sqrt(bias) / length, float(np.mean(cosines))


def batches(data: Path, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Training batches of CIFAR-10, augmented as the config says."""
    split = load_config(CONFIG, [f"DataLoader.Train.dataset.path={data}"]).DataLoader.Train
    loader = build_loader(split, open_section(split.dataset), training=True, seed=seed)
    for batch in loader.epoch(0):
        yield paddle.to_tensor(batch.images), paddle.to_tensor(batch.labels)


def trained_weights(data: Path, steps: int) -> dict[str, np.ndarray]:
    """Those of a network that fp32 has trained for some steps."""
    paddle.seed(0)
    model = build_model("resnet20", 10)
    optimizer = paddle.optimizer.Momentum(0.1, 0.9, parameters=model.parameters(), weight_decay=5e-4)
    for _, (images, labels) in zip(range(steps), batches(data), strict=False):
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.clear_grad()
    return {name: value.numpy() for name, value in model.state_dict().items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10's binary batches")
    parser.add_argument("--weights", type=Path, help="of a trained ResNet20; else it trains --steps first")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=0, help="of timing, in turns; 0: none")
    arguments = parser.parse_args()
    with fast_convolutions(), fast_norm_ops():
        weights = (
            read_weights(arguments.weights)
            if arguments.weights
            else trained_weights(arguments.data, arguments.steps)
        )
        used = [batch for _, batch in zip(range(arguments.batches), batches(arguments.data, 1), strict=False)]
        full = network(weights, None)
        references = [gradient(full, *batch) for batch in used]
        sides: dict[str, Callable[[], np.ndarray]] = {}
        print(f"{'gradients':28} {'noise':>8} {'bias':>8} {'cosine':>8}")
        for name, pair in OPTIONS.items():
            model = network(weights, pair)
            found = []
            for batch, reference in zip(used, references, strict=True):
                gradient(model, *batch)  # hindsight needs a step before
                found.append(quality([gradient(model, *batch) for _ in range(arguments.draws)], reference))
            noise, bias, cosine = np.mean(found, axis=0)
            print(f"{name:28} {noise:8.3f} {bias:8.3f} {cosine:8.3f}", flush=True)
            sides[name] = partial(gradient, model, *used[0])
        if arguments.rounds:
            times = take_turns(sides, arguments.rounds)
            for name in sides:
                print(f"{name:28} step time / {next(iter(sides))}: {ratio(times, name, next(iter(sides)))}")


if __name__ == "__main__":
    main()
