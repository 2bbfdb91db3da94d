"""PyTorch's side of a training step, where it is installed: fp32, channels last, its fastest on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torchvision

if TYPE_CHECKING:
    from lowbit.bench.sides import Case


def torch_step(case: Case) -> Callable[[], None] | None:
    """A function that trains one step; None for a model that torchvision does not have."""
    make = getattr(torchvision.models, case.model, None)
    if make is None:
        return None
    model = make(num_classes=10).to(memory_format=torch.channels_last)
    images = torch.randn(case.batch, 3, case.side, case.side).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (case.batch,))
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        model.train()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
