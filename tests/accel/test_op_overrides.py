"""Operators are replaced in the threads that asked for it, and Paddle's are back afterwards."""

from __future__ import annotations

import threading

import paddle
import pytest
from paddle import _C_ops
from paddle.nn import functional as F

from lowbit.accel.op_overrides import OpOverrides, change_class
from lowbit.errors import LowbitError


def _counting() -> tuple[OpOverrides, list[int]]:
    calls: list[int] = []
    return OpOverrides({"relu": lambda *arguments, **named: calls.append(1)}), calls


def test_none_leaves_it_to_paddle_and_nesting_puts_everything_back():
    overrides, calls = _counting()
    before, x = _C_ops.relu, paddle.to_tensor([-1.0, 2.0])
    with overrides.open():
        with overrides.open():
            assert F.relu(x).tolist() == [0.0, 2.0]
        assert F.relu(x).tolist() == [0.0, 2.0]
    F.relu(x)
    assert len(calls) == 2 and _C_ops.relu is before


def test_after_an_error_they_are_back():
    overrides, _ = _counting()
    before = _C_ops.relu
    try:
        with overrides.open():
            raise ValueError
    except ValueError:
        pass
    assert _C_ops.relu is before


def test_threads_that_close_in_the_order_they_opened():
    overrides, calls = _counting()
    before, x = _C_ops.relu, paddle.ones([1])
    opened, closed = threading.Event(), threading.Event()

    def second() -> None:
        with overrides.open():
            opened.set()
            closed.wait(60)
            F.relu(x)

    thread = threading.Thread(target=second)
    with overrides.open():
        thread.start()
        opened.wait(60)
    F.relu(x)  # this thread has closed it
    assert not calls
    closed.set()
    thread.join()
    assert len(calls) == 1 and _C_ops.relu is before


def test_what_others_have_wrapped_meanwhile_stays():
    overrides, calls = _counting()
    before, x = _C_ops.relu, paddle.ones([1])
    try:
        with overrides.open():
            ours = _C_ops.relu
            theirs = _C_ops.relu = lambda *arguments: ours(*arguments)
        assert _C_ops.relu is theirs
        F.relu(x)
        assert not calls
    finally:
        _C_ops.relu = before


def test_a_retained_graph_is_refused_and_backward_is_put_back():
    """Paddle crashes in a second backward pass through a PyLayer."""
    originals = paddle.Tensor.backward, paddle.autograd.backward
    x = paddle.to_tensor([1.0], stop_gradient=False)
    overrides = OpOverrides({"relu": lambda *arguments, **named: None})
    with overrides.open(), overrides.open():
        for retain in (
            lambda: (x * 2).backward(retain_graph=True),
            lambda: (x * 2).backward(None, True),
            lambda: paddle.autograd.backward([x * 2], retain_graph=True),
        ):
            with pytest.raises(LowbitError, match="call backward once"):
                retain()
        (x * 2).backward()
    assert (paddle.Tensor.backward, paddle.autograd.backward) == originals
    (x * 2).backward(retain_graph=True)
    assert x.grad.item() == 4


def test_a_layer_takes_subclasses_of_its_own_and_its_own_again() -> None:
    layer, plain = paddle.nn.ReLU(), paddle.nn.ReLU
    change_class(layer, type("Other", (plain,), {}))
    assert type(layer).__name__ == "Other"
    change_class(layer, plain)
    assert type(layer) is plain
    with pytest.raises(TypeError, match="ReLU and Conv2D are not subclasses"):
        change_class(layer, paddle.nn.Conv2D)
