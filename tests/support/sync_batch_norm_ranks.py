"""Run by test_sync_batch_norm in two processes: each rank saves what it computed on its share."""

from __future__ import annotations

import sys

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn

from lowbit.nn import convert_sync_batch_norm

STEPS = 3
SHARES = (5, 3)  # uneven on purpose


def make_model() -> nn.Layer:
    paddle.seed(0)
    return nn.Sequential(
        nn.BatchNorm2D(3),  # its input wants no gradient
        nn.Conv2D(3, 6, 3, bias_attr=False),
        nn.BatchNorm2D(6, weight_attr=False, bias_attr=False),
        nn.ReLU(),
        nn.Conv2D(6, 4, 3, stride=2),
        nn.BatchNorm2D(4, momentum=0.7, epsilon=1e-3),
        nn.Flatten(),
        nn.Linear(36, 5),
        nn.BatchNorm1D(5),
    )


def run(model: nn.Layer, rows: slice, world: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    optimizer = paddle.optimizer.SGD(0.1, model.parameters())
    # As in training: gradients go over the same wire as the statistics do.
    network = paddle.DataParallel(model) if world > 1 else model
    outputs = {}
    for step in range(STEPS):
        # A mean far from zero shows variances that were computed by cancellation in fp32.
        images = (rng.normal(size=(8, 3, 9, 9)) + 30).astype("float32")[rows]
        targets = rng.normal(size=(8, 5)).astype("float32")[rows]
        y = network(paddle.to_tensor(images))
        loss = ((y - paddle.to_tensor(targets)) ** 2).sum()
        (loss * world).backward()  # DataParallel takes the mean over ranks
        gradients = {
            f"grad {step} {name}": parameter.grad.numpy()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        outputs |= {f"y {step}": y.numpy(), **gradients}
        optimizer.step()
        optimizer.clear_grad()
    state = {f"state {name}": value.numpy() for name, value in model.state_dict().items()}
    model.eval()
    return outputs | state | {"eval": model(paddle.ones([2, 3, 9, 9])).numpy()}


def main(folder: str) -> None:
    paddle.set_device("cpu")
    dist.init_parallel_env()
    rank = dist.get_rank()
    start = sum(SHARES[:rank])
    rows = slice(start, start + SHARES[rank])
    synced = run(convert_sync_batch_norm(make_model()), rows, dist.get_world_size())
    np.savez(f"{folder}/rank{rank}.npz", **synced)


if __name__ == "__main__":
    main(sys.argv[1])
