"""Run by test_folded in two processes: each rank trains folded layers on its share and saves their state."""

from __future__ import annotations

import sys

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn

from lowbit.nn import convert_sync_batch_norm, prepare
from lowbit.recipe import make_recipe

BATCH = 8


class Net(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2D(3, 4, 3, bias_attr=False), nn.BatchNorm2D(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(nn.functional.relu(self.norm(self.conv(x))).mean([2, 3]))


def run(*, synced: bool, rows: slice, world: int) -> dict[str, np.ndarray]:
    """Two runs, the second with statistics that stand still after two steps of four."""
    found = {}
    for name, freeze_after in (("moving", None), ("frozen", 2)):
        paddle.seed(0)
        model = convert_sync_batch_norm(Net()) if synced else Net()
        recipe = {
            "rules": [
                {
                    "forward": {
                        "input": {"grid": "int8-narrow", "scaling": "moving_average"},
                        "weight": {"grid": "int4-narrow", "scaling": "moving_average"},
                    }
                }
            ],
            "batch_norm": {"fold": "training", "freeze_after": freeze_after},
        }
        rng = np.random.default_rng(0)
        batches = [rng.normal(size=(BATCH, 3, 6, 6)).astype("float32") * (i + 1) for i in range(4)]
        prepare(model, make_recipe(recipe), paddle.to_tensor(batches[0]))
        network = paddle.DataParallel(model) if world > 1 else model
        optimizer = paddle.optimizer.SGD(0.05, model.parameters())
        for batch in batches:
            (network(paddle.to_tensor(batch[rows])) ** 2).sum(1).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        kind = "synced" if synced else "local"
        found |= {f"{kind} .{name}. {key}": value.numpy() for key, value in model.state_dict().items()}
    return found


def main(folder: str) -> None:
    paddle.set_device("cpu")
    dist.init_parallel_env()
    rank, share = dist.get_rank(), BATCH // 2
    rows = slice(rank * share, (rank + 1) * share)
    found = run(synced=True, rows=rows, world=2) | run(synced=False, rows=rows, world=2)
    np.savez(f"{folder}/rank{rank}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1])
