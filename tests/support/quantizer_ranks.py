"""Run by test_quantizer in two processes: each rank trains on its share and saves the quantizers' state."""

from __future__ import annotations

import sys

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn

from lowbit.nn import calibrate, prepare
from lowbit.nn.calibration import correct_biases
from lowbit.recipe import make_recipe

BATCH = 8
CONFIGS = [
    {"activation_preprocess_type": "PACT"},
    {"activation_quantize_type": "range_abs_max", "window_size": 2},
    {"activation_quantize_type": "lsq_act", "weight_quantize_type": "channel_wise_lsq_weight"},
    {
        "rules": [{"forward": {"input": {"grid": "int4", "sign": "auto", "scaling": "fixed"}}}],
        "calibration": {"steps": 1},
    },
    {
        "rules": [
            {
                "forward": {
                    "input": {"grid": "int4", "sign": "auto", "scaling": "fixed", "observer": "sensitivity"},
                    "weight": {"grid": "int4"},
                }
            }
        ],
        "calibration": {"steps": 1, "correct_bias": True},
    },
]


def run(rows: slice, world: int) -> dict[str, np.ndarray]:
    found = {}
    for number, config in enumerate(CONFIGS):
        paddle.seed(0)
        model = prepare(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), make_recipe(config))
        network = paddle.DataParallel(model) if world > 1 else model
        rng = np.random.default_rng(number)
        batches = [paddle.to_tensor(rng.normal(size=(BATCH, 4)).astype("float32")) for _ in range(4)]
        if "calibration" in config:
            calibrate(model, [batches[0][rows]])
            if config["calibration"].get("correct_bias"):
                correct_biases(model, [batches[0][rows]])
        optimizer = paddle.optimizer.SGD(0.01, model.parameters())
        for step, batch in enumerate(batches):
            x = batch[rows].clone()
            if step == 2 and rows.start in (None, 0):
                x[0, 0] = float("nan")  # on one rank only: no rank may take the batch's ranges in
            loss = (network(x) ** 2).mean()
            loss.backward()
            if step != 2:
                optimizer.step()
            optimizer.clear_grad()
        found |= {f"{number} {key}": value.numpy() for key, value in model.state_dict().items()}
    return found


def main(folder: str) -> None:
    paddle.set_device("cpu")
    dist.init_parallel_env()
    rank, share = dist.get_rank(), BATCH // 2
    np.savez(f"{folder}/rank{rank}.npz", **run(slice(rank * share, (rank + 1) * share), world=2))


if __name__ == "__main__":
    main(sys.argv[1])
