"""A short W4A4G4 training whose loss curve was recorded: a refactoring must not change what is trained.

Low-precision training amplifies last bits: one value rounded to the other side changes the loss by 1e-2 a few
steps later. So everything here has the same bits on every processor: all products are of integers, batch norm
is lowbit's kernel, and the loss's gradient is computed in fp64 and rounded. The simulation adds up values in
fp32 where scales differ within a sum (grad_weight), so that its last bits depend on the matrix library: it is
held to the same tolerance for some steps only.
"""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.kernels import kernels, why_missing
from lowbit.models.resnet_cifar import BasicBlock
from lowbit.nn.convert import prepare, set_executor
from lowbit.nn.qt_autograd import seed_rounding
from lowbit.recipe.load import make_recipe

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")

CLASSES, BATCH, SIDE, STEPS = 10, 16, 12, 10
INPUT = {"grid": "int4", "sign": "auto", "granularity": "N", "observer": "mse"}
WEIGHT = {"grid": "int4", "granularity": "N", "observer": "mse"}
GRADIENT = {"grid": "int4", "rounding": "stochastic", "samples": 2}
RECIPE = {
    "rules": [
        {
            "forward": {"input": INPUT, "weight": WEIGHT},
            "grad_input": {
                "grad_output": GRADIENT | {"granularity": "NHW"},
                "weight": WEIGHT | {"granularity": "C"},
            },
            "grad_weight": {"grad_output": GRADIENT | {"granularity": "NC"}, "input": INPUT},
        }
    ]
}
# Recorded with the integer executor: the same digits on Zen 4 (AVX-512 VNNI) and an emulated Haswell (AVX2).
LOSSES = [
    *(2.77913383, 2.57855781, 2.28410961, 2.36431992, 1.99736846),
    *(1.73463009, 2.33478630, 1.70778827, 1.70492058, 1.79458213),
]
GRADIENT_NORMS = {  # in the first step
    "conv1.weight": 0.88536145,
    "layer1.conv1.weight": 1.0853289,
    "layer1.conv2.weight": 0.90952327,
    "layer2.conv1.weight": 0.94089513,
    "layer2.conv2.weight": 1.0758007,
    "layer3.conv1.weight": 0.97312952,
    "layer3.conv2.weight": 1.2517771,
    "linear.weight": 1.7313796,
}


class SmallResNet(nn.Layer):
    """ResNet20 with a block per stage, 8 to 32 channels and shortcuts of strided pixels and zero channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(3, 8, 3, padding=1, bias_attr=False)
        self.bn1 = nn.BatchNorm2D(8)
        self.layer1 = BasicBlock(8, 8, 1)
        self.layer2 = BasicBlock(8, 16, 2)
        self.layer3 = BasicBlock(16, 32, 2)
        self.linear = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean([2, 3]))


def _drawn_model() -> nn.Layer:
    """Weights drawn by NumPy, whose generator is the same everywhere."""
    model, random = SmallResNet(), np.random.default_rng(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            inputs = parameter.shape[0] if parameter.ndim == 2 else np.prod(parameter.shape[1:])
            drawn = random.standard_normal(parameter.shape) * np.sqrt(2 / inputs)
            parameter.set_value(drawn.astype(np.float32))
    return model


def _cross_entropy(logits: Tensor, labels: np.ndarray) -> tuple[float, Tensor]:
    """The loss and the logits' gradient, in fp64."""
    values = logits.numpy().astype(np.float64)
    values -= values.max(1, keepdims=True)
    log_probabilities = values - np.log(np.exp(values).sum(1, keepdims=True))
    wanted = np.eye(CLASSES)[labels]
    gradient = (np.exp(log_probabilities) - wanted) / len(labels)
    return float(-(log_probabilities * wanted).sum(1).mean()), paddle.to_tensor(gradient.astype(np.float32))


def _train(executor: str) -> tuple[list[float], dict[str, float]]:
    """The losses of all steps, and the norms of the first step's gradients."""
    model = _drawn_model()
    prepare(model, make_recipe(RECIPE))
    seed_rounding(model, 0)
    set_executor(model, executor)
    optimizer = paddle.optimizer.Momentum(0.02, 0.9, parameters=model.parameters())
    random = np.random.default_rng(1)
    patterns = random.standard_normal((CLASSES, 3, SIDE, SIDE))
    losses, norms = [], {}
    for step in range(STEPS):
        labels = random.integers(0, CLASSES, BATCH)
        noise = random.standard_normal((BATCH, 3, SIDE, SIDE))
        images = (patterns[labels] + 0.5 * noise).astype(np.float32)
        with fast_norm_ops():
            logits = model(paddle.to_tensor(images))
            loss, gradient = _cross_entropy(logits, labels)
            logits.backward(gradient)
        losses.append(loss)
        if step == 0:
            norms = {
                name: float(np.linalg.norm(parameter.grad.numpy().astype(np.float64)))
                for name, parameter in model.named_parameters()
                if parameter.ndim > 1
            }
        optimizer.step()
        optimizer.clear_grad()
    return losses, norms


def test_the_integer_executor_gives_the_recorded_curve():
    losses, norms = _train("integer")
    np.testing.assert_allclose(losses, LOSSES, rtol=1e-6)
    assert norms == pytest.approx(GRADIENT_NORMS, rel=1e-6)


def test_the_simulation_gives_the_recorded_curve():
    """Two seeds of the stochastic rounding differ by up to 0.06 after some steps."""
    losses, norms = _train("simulate")
    np.testing.assert_allclose(losses[:5], LOSSES[:5], rtol=1e-5)
    np.testing.assert_allclose(losses[5:], LOSSES[5:], atol=0.05)
    assert norms == pytest.approx(GRADIENT_NORMS, rel=1e-5)
