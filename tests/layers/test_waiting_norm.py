"""A batch norm that waits for its reader gives the bits of one that does not, however it is read."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn
from paddle.base import core
from paddle.nn import functional as F

from lowbit.kernels import kernels, why_missing
from lowbit.layers import fast_neighbours as module
from lowbit.layers.fast_neighbours import fast_neighbours
from lowbit.layers.norm_readers import RECTIFIED_SUM, RELU, SUM, note_readers
from lowbit.layers.waiting_norm import WaitingNorm
from lowbit.models import build_model

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


class _Block(nn.Layer):
    def __init__(self, read, reader: str | None) -> None:
        super().__init__()
        paddle.seed(0)
        self.conv, self.norm, self.read = nn.Conv2D(3, 5, 3, padding=1), nn.BatchNorm2D(5), read
        self.shortcut = nn.Sequential(nn.Conv2D(3, 5, 1), nn.BatchNorm2D(5))
        for norm in (self.norm, self.shortcut[1]):
            norm.weight.lowbit_reader = reader

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.norm(self.conv(x)), self.shortcut(x))


def _added_in_place(y: Tensor, x: Tensor) -> Tensor:
    y += x
    return F.relu(y)


def _read_twice(y: Tensor, x: Tensor) -> Tensor:
    return F.relu(y + x) + y


def _looked_at(y: Tensor, x: Tensor) -> Tensor:
    return F.relu(y.reshape(y.shape) + x)


def _detached_after(y: Tensor, x: Tensor) -> Tensor:
    z = F.relu(y)
    return z + y.detach().mean() + x


def _results(model: nn.Layer, x: np.ndarray) -> list[np.ndarray]:
    """After two steps: outputs, gradients and running statistics."""
    found, images = [], paddle.to_tensor(x, stop_gradient=False)
    with fast_neighbours():
        for _ in range(2):
            y = model(images)
            (y * y).mean().backward()
            found.append(y.numpy())
    learned = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    return [*found, images.grad.numpy(), *(p.grad.numpy() for p in learned)] + [
        value.numpy() for name, value in model.state_dict().items() if "_mean" in name or "_variance" in name
    ]


@pytest.mark.parametrize("reader", [RELU, SUM, RECTIFIED_SUM])
@pytest.mark.parametrize(
    ("read", "same_bits"),
    [
        (lambda y, x: F.relu(y) + F.relu(x), True),
        (lambda y, x: nn.ReLU()(y + x), True),
        (lambda y, x: F.relu(x + y), True),
        (lambda y, x: F.relu(paddle.add(y, x)), True),
        (lambda y, x: F.relu(x.add(y)), True),
        (_added_in_place, True),
        (lambda y, x: y + x, True),
        (lambda y, x: F.relu(y + x.mean([2, 3], keepdim=True)), True),
        (lambda y, x: F.relu(y + 1) + F.relu(2 + x), True),
        (_looked_at, True),
        (_read_twice, False),
        (_detached_after, False),
    ],
)
def test_it_has_the_results_of_one_that_does_not_wait(read, same_bits, reader):
    """Whatever the note says. What is read twice is computed twice, by operators with other last bits."""
    x = np.random.default_rng(0).standard_normal((3, 3, 5, 7)).astype(np.float32)
    waited, plain = (_results(_Block(read, note), x) for note in (reader, None))
    for ours, theirs in zip(waited, plain, strict=True):
        if same_bits:
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "mobilenet_v2"])
def test_a_network_trains_to_the_same_bits(name, monkeypatch):
    x, passes = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32), []
    compute = WaitingNorm._compute
    monkeypatch.setattr(
        WaitingNorm, "_compute", lambda *a, **named: passes.append(named) or compute(*a, **named)
    )
    found = []
    for noted in (True, False):
        paddle.seed(0)
        model = build_model(name, 10)
        readers = note_readers(model, paddle.to_tensor(x)) if noted else 0
        if name == "mobilenet_v2":
            model.classifier[0].p = 0.0  # dropout would draw
        found.append(_results(model, x))
        assert len(passes) == 2 * readers or not noted
    assert passes
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_in_evaluation_and_without_gradients_nothing_waits():
    model = _Block(lambda y, x: (y, x), RELU)
    with fast_neighbours():
        with paddle.no_grad():
            assert all(isinstance(y, Tensor) for y in model(paddle.randn([2, 3, 4, 4])))
        model.eval()
        assert all(isinstance(y, Tensor) for y in model(paddle.randn([2, 3, 4, 4])))
        model.train()
        assert all(isinstance(y, WaitingNorm) for y in model(paddle.randn([2, 3, 4, 4])))


def test_afterwards_the_operators_are_paddles():
    names = ("relu", "relu_", "add", "add_", "batch_norm")
    before = [getattr(module._C_ops, name) for name in names]
    with fast_neighbours():
        assert all(getattr(module._C_ops, name) is not old for name, old in zip(names, before, strict=True))
    assert [getattr(module._C_ops, name) for name in names] == before


def test_what_is_not_needed_backward_is_not_kept():
    """The norm's input is of no use once its multiples are kept: it goes with its last reader."""
    norm, x = nn.BatchNorm2D(4), paddle.ones([16, 4, 32, 32])
    norm.weight.lowbit_reader, x.stop_gradient = RELU, False
    product = x * 3
    size = product.size * 4
    product.lowbit_scale = paddle.ones([16, 4, 1, 1])
    with fast_neighbours():
        y = F.relu(norm(product))
    before = core.host_memory_stat_current_value("Allocated", 0)
    del product
    assert before - core.host_memory_stat_current_value("Allocated", 0) >= size
    y.sum().backward()
    assert x.grad.shape == x.shape
