"""PyTorch's sides of a training step, where it is installed: channels last, eager and by `torch.compile`.

In fp32, and in bf16 where the processor multiplies it. Which one is fastest depends on network and threads.

The networks are written out here, since torchvision has no build for every PyTorch, and no ResNet20.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.nn import functional as F

if TYPE_CHECKING:
    from lowbit.bench.sides import Case


class _Block(nn.Module):
    """Two 3×3 convolutions with a shortcut: a 1×1 convolution, or (ResNet20) one without parameters."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, *, projected: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.stride, self.zero_channels = stride, (channels_out - channels_in) // 2
        self.projection = None
        if projected and (stride > 1 or channels_in != channels_out):
            conv = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.projection = nn.Sequential(conv, nn.BatchNorm2d(channels_out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self._shortcut(x), inplace=True)

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.projection is not None:
            return self.projection(x)
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *[self.zero_channels] * 2))
        return x


def _network(
    stem: nn.Module, widths: list[int], blocks: int, classes: int, *, projected: bool
) -> nn.Sequential:
    layers, before = [stem], widths[0]
    for width in widths:
        for number in range(blocks):
            stride = 2 if number == 0 and width != before else 1
            layers.append(_Block(before, width, stride, projected=projected))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def resnet18(classes: int) -> nn.Sequential:
    """ResNet18 as for ImageNet."""
    conv = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    stem = nn.Sequential(conv, nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return _network(stem, [64, 128, 256, 512], 2, classes, projected=True)


def resnet20(classes: int) -> nn.Sequential:
    """ResNet20 as for CIFAR-10."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    return _network(stem, [16, 32, 64], 3, classes, projected=False)


NETWORKS: dict[str, Callable[[int], Any]] = {"resnet18": resnet18, "resnet20": resnet20}


def torch_steps(
    case: Case, classes: int, *, bf16: bool, say: Callable[[str], None]
) -> dict[str, Callable[[], None]]:
    """Functions that train one step, by name; none for a model that is not written out here.

    `bf16` adds rows in bf16. A row that cannot be measured, such as a compiled one without a C++ compiler, is
    left out with a line.
    """
    sides: dict[str, Callable[[], None]] = {}
    if case.model not in NETWORKS:
        return sides
    if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":  # held back; the compiler does not read it
        inductor.cpp.simdlen = 256
    for narrow in (False, True) if bf16 else (False,):
        for compiled in (False, True):
            name = f"PyTorch {'bf16' if narrow else 'fp32'}{' compiled' if compiled else ''}"
            step = _step(case, classes, narrow=narrow, compiled=compiled)
            if compiled:
                say(f"{name}: compiling, a minute or two")
                try:
                    step()
                except Exception as error:
                    say(f"{name} is left out, it does not compile here: {str(error).splitlines()[0]}")
                    continue
            sides[name] = step
    return sides


def _step(case: Case, classes: int, *, narrow: bool, compiled: bool) -> Callable[[], None]:
    model = NETWORKS[case.model](classes).to(memory_format=torch.channels_last)
    images = torch.randn(case.batch, 3, case.side, case.side).to(memory_format=torch.channels_last)
    labels = torch.randint(0, classes, (case.batch,))
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9, weight_decay=1e-4)

    network = torch.compile(model) if compiled else model
    model.train()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
