"""Squeeze-and-excitation of QAT as one node against its layers one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.vision.models.mobilenetv3 import SqueezeExcitation

from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.errors import LowbitError
from lowbit.kernels import kernels, why_missing
from lowbit.kernels.excitation import Excitation
from lowbit.kernels.library import openmp_runtime
from lowbit.nn import calibrate
from lowbit.nn.convert import prepare
from lowbit.nn.fused_blocks import fuse
from lowbit.recipe import load_recipe
from tests.support.gemm_cases import on_threads, using

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
STEPS = 3


class Net(nn.Layer):
    def __init__(self, channels: int, hidden: int, *, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2D(3, channels, 1)
        self.block = SqueezeExcitation(channels, hidden, scale_activation=nn.Hardsigmoid)
        if not bias:
            self.block.fc1 = nn.Conv2D(channels, hidden, 1, bias_attr=False)
            self.block.fc2 = nn.Conv2D(hidden, channels, 1, bias_attr=False)
        self.last = nn.Conv2D(channels, 4, 1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.last(self.block(self.first(x)))


def _recipe(*, edges: bool) -> object:
    recipe = load_recipe("qat_w8a8")
    return recipe if edges else recipe.model_copy(update={"outputs": "full"})


def _net(images: paddle.Tensor, *, fused: bool, edges: bool = True, bias: bool = True, sizes=(13, 5)) -> Net:
    paddle.seed(0)
    net = Net(*sizes, bias=bias)
    if fused:
        fuse(net)
    prepare(net, _recipe(edges=edges), images)
    calibrate(net, [images])
    net.train()
    return net


def _steps(net: Net, batches: list[paddle.Tensor]) -> dict[str, np.ndarray]:
    """Outputs, gradients and state of some steps."""
    found = {}
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    for number, images in enumerate(batches):
        with fast_convolutions(), fast_norm_ops():
            y = net(images)
            (y * y).sum().backward()
        found[f"{number} y"] = y.numpy()
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                found[f"{number} grad {name}"] = parameter.grad.numpy()
        optimizer.step()
        optimizer.clear_grad()
    return found | {name: value.numpy() for name, value in net.state_dict().items()}


def _assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def _calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the kernel from now on was done."""
    calls, forward = [], Excitation.forward

    def noted(self: Excitation, x: int, y: int) -> bool:
        calls.append(forward(self, x, y))
        return calls[-1]

    monkeypatch.setattr(Excitation, "forward", noted)
    return calls


@pytest.mark.parametrize("variant", kernels().variants if kernels() else [])
@pytest.mark.parametrize(
    ("shape", "sizes"), [([4, 3, 7, 7], (13, 5)), ([1, 3, 1, 1], (16, 8)), ([3, 3, 5, 9], (72, 24))]
)
@pytest.mark.parametrize(("edges", "bias"), [(True, True), (True, False), (False, True)])
def test_the_block_gives_the_bits_of_its_layers(variant, shape, sizes, edges, bias, monkeypatch) -> None:
    batches = [paddle.randn(shape) * scale for scale in (1.0, 5.0, 0.3)]
    with using(variant):
        plain = _steps(_net(batches[0], fused=False, edges=edges, bias=bias, sizes=sizes), batches)
        calls = _calls(monkeypatch)
        found = _steps(_net(batches[0], fused=True, edges=edges, bias=bias, sizes=sizes), batches)
    assert calls == [True] * STEPS
    _assert_same(found, plain)


@pytest.mark.skipif(openmp_runtime() is None, reason="Paddle's wheel has no OpenMP runtime here")
def test_any_number_of_threads_gives_the_same_bits() -> None:
    images, found = paddle.randn([4, 3, 40, 40]), []
    for number in (1, 2, 5):
        with on_threads(number):
            found.append(_steps(_net(images, fused=True, sizes=(40, 16)), [images]))
    _assert_same(found[0], found[1])
    _assert_same(found[0], found[2])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", ["images", "block.fc1.weight", "block.fc1.bias", "block.fc2.bias", "alpha"])
def test_values_that_are_not_finite(value: float, place: str) -> None:
    """A NaN is not hidden by an integer, and averages enter a batch once."""
    images = paddle.randn([2, 3, 5, 5])
    found = []
    for is_fused in (False, True):
        net, batch = _net(images, fused=is_fused), images.clone()
        if place == "images":
            batch[0, 0, 2, 2] = value
        else:
            name = "block.fc2.input_quantizer.alpha.value" if place == "alpha" else place
            parameter = dict(net.named_parameters())[name]
            values = parameter.numpy()
            values.flat[0] = value
            parameter.set_value(values)
        found.append(_steps(net, [batch]))
    _assert_same(*found)


def _hook(layer: nn.Layer, seen: list) -> None:
    layer.register_forward_post_hook(lambda _, __, y: seen.append(y.numpy()))


def _own_forward(layer: nn.Layer, seen: list) -> None:
    plain = layer.forward
    object.__setattr__(layer, "forward", lambda x: seen.append(x.numpy()) or plain(x))


@pytest.mark.parametrize("change", [_hook, _own_forward])
@pytest.mark.parametrize(
    "place",
    [
        "avgpool",
        "fc1",
        "fc1.input_quantizer",
        "activation",
        "fc2",
        "fc2.output_quantizer",
        "scale_activation",
    ],
)
def test_what_a_user_adds_is_called(place: str, change: Callable, monkeypatch) -> None:
    images, found = paddle.randn([2, 3, 5, 5]), []
    calls = _calls(monkeypatch)
    for is_fused in (False, True):
        net, seen = _net(images, fused=is_fused), []
        change(dict(net.block.named_sublayers())[place], seen)
        found.append(_steps(net, [images]))
        assert len(seen) == 1
    assert not calls
    _assert_same(*found)


def test_another_scale_is_called(monkeypatch) -> None:
    images = paddle.randn([2, 3, 5, 5])
    calls, net = _calls(monkeypatch), _net(images, fused=True)
    object.__setattr__(net.block, "_scale", lambda x: paddle.ones([*x.shape[:2], 1, 1]))
    with fast_convolutions(), fast_norm_ops():
        net(images)
    assert not calls


def test_frozen_parameters_get_no_gradient() -> None:
    images, found = paddle.randn([2, 3, 5, 5]), []
    frozen = ["block.fc1.weight", "block.fc2.bias", "block.fc2.input_quantizer.alpha.value"]
    for is_fused in (False, True):
        net = _net(images, fused=is_fused)
        for name in frozen:
            dict(net.named_parameters())[name].stop_gradient = True
        found.append(_steps(net, [images]))
    _assert_same(*found)
    assert not any(f"0 grad {name}" in found[0] for name in frozen)


def test_what_was_changed_in_place_is_an_error() -> None:
    images = paddle.randn([2, 3, 5, 5])
    net = _net(images, fused=True)
    with fast_convolutions(), fast_norm_ops():
        y = net(images).sum()
        with paddle.no_grad():
            net.block.fc1.weight.scale_(2.0)
        with pytest.raises((LowbitError, OSError), match="changed in place"):
            y.backward()


def test_gradients_of_gradients_are_an_error() -> None:
    images = paddle.randn([2, 3, 5, 5])
    net = _net(images, fused=True)
    with fast_convolutions(), fast_norm_ops(), pytest.raises((LowbitError, OSError), match="second-order"):
        y = net.block(net.first(images))
        paddle.grad(y.sum(), [net.block.fc1.weight], create_graph=True)
