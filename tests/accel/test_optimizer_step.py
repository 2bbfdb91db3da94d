"""Momentum, Adam and AdamW in one call: the bits of Paddle's own step, whatever the options."""

from __future__ import annotations

import logging
import threading

import numpy as np
import paddle
import pytest
from paddle import nn, optimizer
from paddle.regularizer import L1Decay, L2Decay

from lowbit.accel import optimizer_step
from lowbit.accel.optimizer_step import fast_updates
from lowbit.kernels import kernels, why_missing
from lowbit.machine.device import math_threads, set_math_threads

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
STEPS = 4


class Net(nn.Layer):
    """Parameters of several sizes, one of them more than a chunk, with settings of their own, and unused."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(7, 3001)
        self.small = nn.Linear(
            3001,
            3,
            weight_attr=paddle.ParamAttr(regularizer=L2Decay(0.03)),
            bias_attr=paddle.ParamAttr(learning_rate=0.5, regularizer=L1Decay(0.02)),
        )
        self.frozen = nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)
        for parameter in self.frozen.parameters():
            parameter.stop_gradient = True

    def forward(self, x):
        return self.frozen(self.small(nn.functional.tanh(self.large(x))))


def groups(net: Net) -> list[dict]:
    return [
        {"params": net.large.parameters(), "weight_decay": 0.02, "learning_rate": 0.3},
        {"params": net.small.parameters()},
    ]


def by_steps() -> optimizer.lr.LRScheduler:
    return optimizer.lr.StepDecay(0.1, step_size=2, gamma=0.3)


OPTIONS = {
    "momentum": lambda net: optimizer.Momentum(0.1, 0.9, net.parameters()),
    "nesterov": lambda net: optimizer.Momentum(0.1, 0.9, net.parameters(), use_nesterov=True),
    "decay": lambda net: optimizer.Momentum(0.1, 0.9, net.parameters(), weight_decay=1e-2),
    "nesterov decay": lambda net: optimizer.Momentum(
        0.1, 0.9, net.parameters(), use_nesterov=True, weight_decay=L2Decay(1e-2)
    ),
    "l1": lambda net: optimizer.Momentum(0.1, 0.9, net.parameters(), weight_decay=L1Decay(1e-2)),
    "schedule": lambda net: optimizer.Momentum(by_steps(), 0.9, net.parameters(), weight_decay=1e-2),
    "global norm": lambda net: optimizer.Momentum(
        0.1, 0.9, net.parameters(), grad_clip=nn.ClipGradByGlobalNorm(0.01)
    ),
    "norm": lambda net: optimizer.AdamW(0.01, parameters=net.parameters(), grad_clip=nn.ClipGradByNorm(0.01)),
    "value": lambda net: optimizer.Adam(
        0.01, parameters=net.parameters(), grad_clip=nn.ClipGradByValue(0.001)
    ),
    "multi precision": lambda net: optimizer.Momentum(0.1, 0.9, net.parameters(), multi_precision=True),
    "momentum groups": lambda net: optimizer.Momentum(0.1, 0.9, groups(net), weight_decay=1e-2),
    "adam": lambda net: optimizer.Adam(0.01, parameters=net.parameters()),
    "adam decay": lambda net: optimizer.Adam(0.01, parameters=net.parameters(), weight_decay=1e-2),
    "adam settings": lambda net: optimizer.Adam(0.01, 0.8, 0.99, 1e-3, net.parameters(), lazy_mode=True),
    "adam groups": lambda net: optimizer.Adam(0.01, parameters=groups(net), weight_decay=1e-2),
    "adam multi tensor": lambda net: optimizer.Adam(0.01, parameters=net.parameters(), use_multi_tensor=True),
    "adamw": lambda net: optimizer.AdamW(0.01, parameters=net.parameters(), weight_decay=0.1),
    "adamw some": lambda net: optimizer.AdamW(
        0.01,
        parameters=net.parameters(),
        weight_decay=0.1,
        apply_decay_param_fun=lambda name: name.endswith("w_0"),
    ),
    "adamw groups": lambda net: optimizer.AdamW(by_steps(), parameters=groups(net), weight_decay=0.1),
    "amsgrad": lambda net: optimizer.AdamW(0.01, parameters=net.parameters(), amsgrad=True),
    "rescaled": lambda net: optimizer.Momentum(0.1, 0.9, net.parameters(), rescale_grad=0.5),
    "sgd": lambda net: optimizer.SGD(0.1, net.parameters(), weight_decay=1e-2),
    "rmsprop": lambda net: optimizer.RMSProp(0.01, parameters=net.parameters()),
}
LEFT_TO_PADDLE = {"amsgrad", "rescaled", "sgd", "rmsprop", "adam multi tensor"}


@pytest.fixture
def calls(monkeypatch):
    """How many parameters each call of a kernel got."""
    seen: list[int] = []
    own = optimizer_step.optimizer_kernels()
    for name in ("momentum_step", "adam_step"):

        def counted(updates, name=name):
            seen.append(len(updates))
            getattr(type(own), name)(own, updates)

        monkeypatch.setattr(own, name, counted)
    return seen


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(optimizer_step, "_SMALL", 0)


def trained(option: str, *, fast: bool, steps: int = STEPS) -> dict[str, np.ndarray]:
    """Parameters and the optimizer's state after some steps."""
    paddle.seed(3)
    net = Net()
    rule = OPTIONS[option](net)
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((5, 7)).astype("f4"))
    with fast_updates(wanted=fast):
        for _ in range(steps):
            net(x).square().mean().backward()
            rule.step()
            rule.clear_grad()
            if isinstance(rule._learning_rate, optimizer.lr.LRScheduler):
                rule._learning_rate.step()
    state = {f"state {i}": value for i, value in enumerate(rule.state_dict().values())}
    return {
        name: np.asarray(value.numpy())
        for name, value in {**net.state_dict(), **state}.items()
        if isinstance(value, paddle.Tensor)
    }


def assert_same_bits(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value.view("u1"), theirs[name].view("u1"), err_msg=name)


@pytest.mark.parametrize("option", OPTIONS)
def test_bits_of_paddle(option, calls):
    ours = trained(option, fast=True)
    assert bool(calls) == (option not in LEFT_TO_PADDLE)
    theirs = trained(option, fast=False)
    assert_same_bits(ours, theirs)
    assert not np.array_equal(ours["large.weight"], trained(option, fast=False, steps=0)["large.weight"])


@pytest.mark.parametrize("option", ["decay", "adamw", "adamw groups"])
def test_one_call_a_step(option, calls):
    trained(option, fast=True)
    assert calls == [4] * STEPS


def test_small_parameters_are_paddles(calls, monkeypatch):
    monkeypatch.setattr(optimizer_step, "_SMALL", 3001 * 3 + 1)
    ours = trained("decay", fast=True)
    assert calls == [1] * STEPS
    assert_same_bits(ours, trained("decay", fast=False))


@pytest.mark.parametrize("option", ["nesterov decay", "adamw"])
def test_threads_and_instruction_sets(option):
    expected = trained(option, fast=False)
    threads, variant = math_threads(), kernels().variant
    try:
        for name in kernels().variants:
            kernels().select_variant(name)
            for count in (1, 3):
                set_math_threads(count)
                assert_same_bits(trained(option, fast=True), expected)
    finally:
        set_math_threads(threads)
        kernels().select_variant(variant)


@pytest.mark.parametrize("kind", [optimizer.Adam, optimizer.Momentum])
def test_another_default_type_changes_nothing(kind):
    optimizer_step._adam_is_fused.cache_clear()
    parameter = paddle.create_parameter([300, 300], "float32")
    paddle.set_default_dtype("float64")
    try:
        with fast_updates():
            update = kind(learning_rate=0.1, parameters=[parameter])
            (parameter * parameter).sum().backward()
            update.step()
    finally:
        paddle.set_default_dtype("float32")
        optimizer_step._adam_is_fused.cache_clear()


def test_sparse_gradients_are_paddles(calls, caplog):
    def train(*, fast: bool) -> np.ndarray:
        paddle.seed(0)
        table = nn.Embedding(10, 4, sparse=True)
        rule = optimizer.Adam(0.1, parameters=table.parameters(), lazy_mode=True)
        with fast_updates(wanted=fast):
            table(paddle.to_tensor([1, 2])).sum().backward()
            rule.step()
        return table.weight.numpy()

    optimizer_step._said.clear()
    with caplog.at_level(logging.INFO, "lowbit"):
        np.testing.assert_array_equal(train(fast=True), train(fast=False))
        train(fast=True)
    assert not calls
    assert caplog.messages == ["accelerate: Adam is updated by Paddle's own operator: sparse gradients"]


def test_a_parameter_listed_twice(calls):
    def train(*, fast: bool) -> np.ndarray:
        paddle.seed(0)
        layer = nn.Linear(4, 4)
        rule = optimizer.Momentum(0.1, 0.9, [layer.weight, layer.weight])
        with fast_updates(wanted=fast):
            for _ in range(2):
                layer(paddle.ones([2, 4])).sum().backward()
                rule.step()
        return layer.weight.numpy()

    np.testing.assert_array_equal(train(fast=True), train(fast=False))
    assert calls == [1] * 4  # one after the other


def test_a_gradient_that_is_another_parameter(calls):
    def train(*, fast: bool) -> list[np.ndarray]:
        paddle.seed(0)
        one, two = nn.Linear(4, 4).weight, nn.Linear(4, 4).weight
        one.grad = paddle.ones_like(one)
        two.grad = one.detach()
        rule = optimizer.Momentum(0.1, 0.9, [one, two])
        with fast_updates(wanted=fast):
            rule.step()
        return [one.numpy(), two.numpy()]

    np.testing.assert_array_equal(train(fast=True), train(fast=False))
    assert calls


def test_numbers_that_are_not_finite():
    def train(*, fast: bool) -> list[np.ndarray]:
        paddle.seed(0)
        layer = nn.Linear(4, 3, bias_attr=False)
        layer.weight.grad = paddle.to_tensor(np.array([[np.nan, np.inf, -np.inf, 1e38]] * 3, "f4").T)
        rules = [make(0.1, parameters=[layer.weight]) for make in (optimizer.Momentum, optimizer.AdamW)]
        with fast_updates(wanted=fast):
            for rule in rules:
                rule.step()
        return [layer.weight.numpy(), *(t.numpy() for rule in rules for t in rule.state_dict().values())]

    for ours, theirs in zip(train(fast=True), train(fast=False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_step_that_fails_leaves_what_paddles_leaves():
    def train(*, fast: bool) -> list[np.ndarray]:
        paddle.seed(0)
        layer = nn.Linear(4, 4)
        rule = optimizer.AdamW(
            0.1, parameters=layer.parameters(), apply_decay_param_fun=lambda name: {"w_0": True}[name[-3:]]
        )
        layer(paddle.ones([2, 4])).sum().backward()
        with pytest.raises(KeyError), fast_updates(wanted=fast):
            rule.step()
        return [layer.weight.numpy(), layer.bias.numpy()]

    np.testing.assert_array_equal(train(fast=True)[0], train(fast=False)[0])


def test_other_threads_and_the_end_are_paddles(calls):
    before = optimizer.Optimizer.step, optimizer.Adam.step, optimizer.AdamW.step
    with fast_updates():
        thread = threading.Thread(target=trained, args=("adam",), kwargs={"fast": False})
        thread.start()
        thread.join()
        assert not calls
        with fast_updates():
            trained("adam", fast=False)
        assert calls
    assert (optimizer.Optimizer.step, optimizer.Adam.step, optimizer.AdamW.step) == before


def test_where_paddle_rounds_otherwise(monkeypatch, calls, caplog):
    """On a processor where neither way gives its bits, Paddle's operator is used."""
    optimizer_step._said.clear()
    monkeypatch.setattr(optimizer_step, "_adam_is_fused", lambda: None)
    monkeypatch.setattr(optimizer_step, "_momentum_agrees", lambda: False)
    with caplog.at_level(logging.INFO, "lowbit"):
        for option in ("adamw", "decay"):
            assert_same_bits(trained(option, fast=True), trained(option, fast=False))
    assert not calls and len(caplog.messages) == 2


def test_the_probe_sees_another_rounding():
    """It must be able to say no: the one of two ways that is not Paddle's is found to differ."""
    fused = optimizer_step._adam_is_fused()
    assert fused is not None
    assert not optimizer_step._adam_agrees(is_fused=not fused)
    assert optimizer_step._momentum_agrees()
