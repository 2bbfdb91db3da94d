"""Every network trains the same with every fast path on and off: losses and the gradients of all parameters.

fp32 is compared with Paddle without lowbit. In low precision, both executors, with either library for
convolutions, have the same bits. Batch norm's last bits differ from Paddle's, which can move a value to the
other side of a rounding: that changes a small network's gradient by more than the sums do, hence the wider
tolerances in few bits. A stale range or a lost reader changes gradients by 50 % and more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.kernels import kernels, why_missing
from lowbit.nn.convert import prepare, set_executor
from lowbit.nn.qt_autograd import seed_rounding
from lowbit.recipe.load import make_recipe
from tests.support.networks import CLASSES, NETWORKS, Network, conv

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
STEPS, BATCH = 2, 4


def _recipe(bits: int, *, gradients: bool, **words: str) -> dict:
    """Scales that come out of all sums, so that both executors add the same integers."""
    whole, rows, columns = ({"grid": f"int{bits}", **words, **at} for at in ({}, _by("N"), _by("C")))
    rule = {"forward": {"input": whole, "weight": rows}}
    if gradients:
        random = {"grid": f"int{bits}", "rounding": "stochastic"}
        rule["grad_input"] = {"grad_output": random | _by("N"), "weight": columns}
        rule["grad_weight"] = {"grad_output": random | _by("C"), "input": whole}
    return {"rules": [rule]}


def _by(letters: str) -> dict[str, str]:
    return {"granularity": letters}


MODES = {
    "fp32": None,
    "QAT W8A8": _recipe(8, gradients=False),
    "W8A8G8": _recipe(8, gradients=True),
    "W4A4G4": _recipe(4, gradients=True, observer="mse"),
}


class Way(NamedTuple):
    """Which fast paths are on."""

    executor: str = "auto"
    convolutions: bool = True
    norm_ops: bool = True


SLOW = Way("simulate", False, False)
WAYS = [Way(), Way("simulate"), Way(convolutions=False), Way(norm_ops=False)]
# Of each parameter's gradient, relative to its norm. Measured: 2e-5, 2e-4, 8e-4, 3e-5.
TOLERANCES = {"fp32": 1e-4, "QAT W8A8": 5e-3, "W8A8G8": 0.02, "W4A4G4": 0.1}


class Trained(NamedTuple):
    losses: list[float]
    gradients: list[dict[str, np.ndarray | None]]  # of every step
    state: dict[str, np.ndarray]  # batch norms' statistics


def _train(kind: type[Network], mode: str, way: Way) -> Trained:
    paddle.seed(0)
    model = kind()
    if MODES[mode] is not None:
        prepare(model, make_recipe(MODES[mode]))
        seed_rounding(model, 0)
        set_executor(model, way.executor)
    optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
    random = np.random.default_rng(0)
    images = paddle.to_tensor(random.standard_normal((BATCH, 3, 16, 16)).astype(np.float32))
    labels = paddle.to_tensor(random.integers(0, CLASSES, BATCH))
    losses, gradients = [], []
    with fast_convolutions(wanted=way.convolutions), fast_norm_ops(wanted=way.norm_ops):
        for step in range(STEPS):
            paddle.seed(step)  # of what the networks draw
            losses.append(model.backward_pass(images, labels))
            gradients.append(
                {name: None if p.grad is None else p.grad.numpy() for name, p in model.named_parameters()}
            )
            optimizer.step()
            optimizer.clear_grad()
    state = {n: v.numpy() for n, v in model.state_dict().items() if n.endswith(("_mean", "_variance"))}
    return Trained(losses, gradients, state)


def _largest_difference(found: Trained, expected: Trained) -> tuple[float, str]:
    """Of any gradient in any step, relative to its norm, and where."""
    most = (0.0, "")
    for step, (ours, theirs) in enumerate(zip(found.gradients, expected.gradients, strict=True)):
        norms = [np.linalg.norm(gradient) for gradient in theirs.values() if gradient is not None]
        for name, gradient in theirs.items():
            assert (gradient is None) == (ours[name] is None), f"{name} in step {step}"
            if gradient is not None:
                # A gradient that is 0 but for rounding has no direction to compare.
                norm = np.linalg.norm(gradient) + 1e-3 * max(norms)
                most = max(
                    most, (float(np.linalg.norm(ours[name] - gradient) / norm), f"{name} in step {step}")
                )
    return most


def _assert_same_bits(found: Trained, expected: Trained) -> None:
    assert found.losses == expected.losses
    for ours, theirs in zip(found.gradients, expected.gradients, strict=True):
        for name, gradient in theirs.items():
            np.testing.assert_array_equal(ours[name], gradient, err_msg=name)


CASES = [
    pytest.param(kind, mode, id=f"{kind.__name__}-{mode}")
    for kind in NETWORKS
    for mode in kind.modes or MODES
]


@pytest.mark.parametrize(("kind", "mode"), CASES)
def test_every_way_trains_alike(kind, mode):
    slow = _train(kind, mode, SLOW)
    assert any(gradient is not None for gradient in slow.gradients[0].values())
    assert all(np.isfinite(slow.losses))
    fast: Trained | None = None
    for way in WAYS:
        if mode == "fp32" and way.executor != "auto":
            continue
        found = _train(kind, mode, way)
        difference, where = _largest_difference(found, slow)
        assert difference < TOLERANCES[mode], f"{way}: {where}"
        np.testing.assert_allclose(found.losses, slow.losses, rtol=TOLERANCES[mode])
        for name, value in slow.state.items():
            np.testing.assert_allclose(found.state[name], value, rtol=1e-3, atol=1e-3, err_msg=name)
        if "G" in mode:
            fast = fast or found
            _assert_same_bits(found, fast if way.norm_ops else slow)


@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if kind.modes is None])
def test_eight_bits_are_near_fp32(kind):
    """What both executors would get wrong alike."""
    full, few = _train(kind, "fp32", SLOW), _train(kind, "W8A8G8", Way())
    names = [name for name, gradient in full.gradients[0].items() if gradient is not None]
    one, other = (np.concatenate([run.gradients[0][name].ravel() for name in names]) for run in (full, few))
    assert np.linalg.norm(other - one) < 0.25 * np.linalg.norm(one)


class _CroppedHead(nn.Layer):
    """The smallest network that trained on a stale range: a crop's gradient, ten times as large, is added in
    place to that of a batch norm, in the memory whose range was remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.bn = conv(3, 16), conv(16, 16), nn.BatchNorm2D(16)
        self.other = conv(16, 16)

    def forward(self, x: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        y = self.conv(self.stem(x))
        return self.bn(y), self.other(y[:, :, 8:24, 8:24])


@pytest.mark.parametrize("mode", ["fp32", "W8A8G8", "W4A4G4"])
def test_a_crop_through_a_second_head_that_counts_ten_times(mode):
    """16×16×32×32: `conv.weight.grad` was off by 99 %."""
    found = []
    for norm_ops in (True, False):
        paddle.seed(0)
        model = _CroppedHead()
        if MODES[mode] is not None:
            prepare(model, make_recipe(MODES[mode]))
            seed_rounding(model, 0)
        images, target = paddle.randn([16, 3, 32, 32]), paddle.randn([16, 16, 32, 32])
        with fast_norm_ops(wanted=norm_ops):
            first, second = model(images)
            ((first - target).square().mean() + 10 * second.square().mean()).backward()
        found.append(model.conv.weight.grad.numpy())
    assert np.linalg.norm(found[0] - found[1]) < TOLERANCES[mode] * np.linalg.norm(found[1])
