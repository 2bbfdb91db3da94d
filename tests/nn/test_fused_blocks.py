"""Fused blocks against the same blocks unfused: outputs, gradients and running statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.vision import models as vision

from lowbit.accel.amp_autocast import rounding
from lowbit.accel.conv_norm import ConvNormNode
from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.kernels.library import openmp_runtime
from lowbit.kernels.norm import Activation
from lowbit.models import build_model
from lowbit.nn import calibrate, fused_steps, qat_steps, qt_autograd
from lowbit.nn.convert import prepare
from lowbit.nn.edge_quantizers import without_edges
from lowbit.nn.fused_blocks import fuse, unfuse
from lowbit.nn.fused_steps import conv_norm_act, conv_norm_act_ranges, norm_act
from lowbit.nn.int_matmul import forward_in_multiples, forward_of_unrounded
from lowbit.numerics.grid import BF16
from lowbit.recipe import load_recipe
from tests.support.gemm_cases import on_threads, using

NETWORKS: dict[str, Callable[[], nn.Layer]] = {
    "resnet18": lambda: vision.resnet18(num_classes=10),
    "resnet50": lambda: vision.resnet50(num_classes=10),
    "resnet20": lambda: build_model("resnet20", 10),
    "mobilenet_v2": lambda: vision.mobilenet_v2(scale=0.25, num_classes=10),
    "mobilenet_v3": lambda: vision.mobilenet_v3_small(num_classes=10),
    "old": lambda: OldBlocks(),
    "vgg": lambda: vision.VGG(_vgg_features(), num_classes=0, with_pool=False),
}


class OldBlocks(nn.Layer):
    """The batch norm of DenseNet and of PaddleClas's ConvBNLayer, with its activation within, or none."""

    def __init__(self) -> None:
        super().__init__()
        kinds = ("relu", "relu6", "hard_swish", "sigmoid", None)
        self.convs = nn.LayerList([nn.Conv2D(3 if n == 0 else 8, 8, 3, padding=1) for n in range(5)])
        self.norms = nn.LayerList([nn.BatchNorm(8, act=kind) for kind in kinds])

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        for n, norm in enumerate(self.norms):  # Paddle makes no program of a strict zip
            x = norm(self.convs[n](x))
        return x


def _vgg_features() -> nn.Layer:
    layers: list[nn.Layer] = []
    for channels in (3, 8, 8):
        layers += [nn.Conv2D(channels, 8, 3), nn.BatchNorm2D(8), nn.ReLU()]
    return nn.Sequential(*layers)


class OwnNet(nn.Layer):
    """Code that lowbit does not know."""

    def __init__(self, *, second_reader: bool = False) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU()
        self.second_reader = second_reader

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        y = self.bn(self.conv(x))
        return self.relu(y) + y if self.second_reader else self.relu(y)


def _step(net: nn.Layer, images: paddle.Tensor) -> dict[str, np.ndarray]:
    """Output, gradients and state after one training pass."""
    net.train()
    paddle.seed(3)
    with fast_convolutions(), fast_norm_ops():
        out = net(images)
        (out * out).mean().backward()
    found = {"output": out.numpy()}
    found |= {f"grad {name}": p.grad.numpy() for name, p in net.named_parameters() if p.grad is not None}
    return found | {name: value.numpy() for name, value in net.state_dict().items()}


def _assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("recipe", [None, "qt_w4a4g4", "qt_w8a8g8", "qat_w8a8", "qat_w4a4"])
def test_fused_and_unfused_give_the_same_bits(name: str, recipe: str | None) -> None:
    paddle.seed(0)
    plain = NETWORKS[name]()
    fused = copy.deepcopy(plain)
    report = fuse(fused)
    assert report.fused
    images = paddle.randn([4, 3, 32, 32])
    if recipe:
        for net in (plain, fused):
            _prepare(net, recipe, images)
    _assert_same(_step(plain, images), _step(fused, images))


def _prepare(net: nn.Layer, recipe: str, images: paddle.Tensor) -> None:
    prepare(net, load_recipe(recipe), images)
    if recipe.startswith("qat"):
        calibrate(net, [images])


def _sequence() -> nn.Layer:
    """Batch norms with a quantizer behind, before a hard swish and before a sum."""
    net = build_model("mobilenet_v3_small", 10)
    return nn.Sequential(net.conv, *net.blocks[:5])


@pytest.mark.parametrize("place", ["0.1", "0.2", "4.expand_conv.1", "4.bottleneck_conv.2", "5"])
def test_a_hook_beside_a_quantizer_of_outputs_is_called(place: str) -> None:
    """Of a batch norm, an activation, a block: called with what the unfused layer gives, quantized or not."""
    found, images = [], paddle.randn([2, 3, 32, 32])
    for is_fused in (False, True):
        paddle.seed(0)
        net, seen = _sequence(), []
        if is_fused:
            assert fuse(net).fused
        _prepare(net, "qat_w8a8", images)
        layer = dict(net.named_sublayers())[place]
        layer.register_forward_post_hook(lambda _, __, output, seen=seen: seen.append(output.numpy()))
        _step(net, images)
        assert len(seen) == 1
        found.append({"seen": seen[0]} | _step(net, images))
    _assert_same(*found)


def _chains(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many convolutions every chain from now on has."""
    lengths, run = [], qat_steps.run_chain
    monkeypatch.setattr(qat_steps, "run_chain", lambda x, links: lengths.append(len(links)) or run(x, links))
    return lengths


def test_which_convolutions_of_qat_are_in_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to squeeze-and-excitation, a sum, or another block, where others read."""
    lengths, net, images = _chains(monkeypatch), _sequence(), paddle.randn([2, 3, 32, 32])
    fuse(net)
    _prepare(net, "qat_w8a8", images)
    _step(net, images)
    assert lengths == [1, 1, 3, 3, 2, 1, 2]
    with without_edges(net):
        _step(net, images)
    assert lengths[7:] == [2]  # one whose first input is on no edge


_INNER = [
    *("2.expand_conv", "2.expand_conv.0", "2.expand_conv.0.input_quantizer", "2.expand_conv.1"),
    *("2.expand_conv.2", "2.bottleneck_conv.0", "2.bottleneck_conv.0.input_quantizer"),
    *("2.linear_conv.0.weight_quantizer", "4.expand_conv.2", "4.mid_se"),
]


@pytest.mark.parametrize("place", _INNER)
@pytest.mark.parametrize("kind", ["post", "pre"])
def test_a_hook_inside_a_chain_is_called(place: str, kind: str) -> None:
    found, images = [], paddle.randn([2, 3, 32, 32])
    for is_fused in (False, True):
        paddle.seed(0)
        net, seen = _sequence(), []
        if is_fused:
            fuse(net)
        _prepare(net, "qat_w8a8", images)
        layer = dict(net.named_sublayers())[place]
        if kind == "post":
            layer.register_forward_post_hook(lambda _, __, y, seen=seen: seen.append(y.numpy()))
        else:
            layer.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0].numpy()))
        step = _step(net, images)
        assert len(seen) == 1
        found.append({"seen": seen[0]} | step)
    _assert_same(*found)


@pytest.mark.parametrize(
    "frozen",
    ["2.expand_conv.0.weight", "2.bottleneck_conv.1.bias", "2.bottleneck_conv.0.input_quantizer.alpha.value"],
)
def test_a_frozen_parameter_in_a_chain_gets_no_gradient(frozen: str) -> None:
    found, images = [], paddle.randn([2, 3, 32, 32])
    for is_fused in (False, True):
        paddle.seed(0)
        net = _sequence()
        if is_fused:
            fuse(net)
        _prepare(net, "qat_w8a8", images)
        dict(net.named_parameters())[frozen].stop_gradient = True
        found.append(_step(net, images))
    _assert_same(*found)
    assert f"grad {frozen}" not in found[0]


@pytest.mark.parametrize("variant", kernels().variants if kernels() else [])
def test_chains_in_every_instruction_set(variant: str) -> None:
    """An odd size, so that strips and rows end anywhere."""
    found, images = [], paddle.randn([3, 3, 37, 45])
    for is_fused in (False, True):
        paddle.seed(0)
        net = _sequence()
        if is_fused:
            fuse(net)
        _prepare(net, "qat_w8a8", images)
        with using(variant):
            found.append(_step(net, images))
    _assert_same(*found)


@pytest.mark.skipif(openmp_runtime() is None, reason="Paddle's wheel has no OpenMP runtime here")
def test_chains_on_any_number_of_threads() -> None:
    found, images = [], paddle.randn([3, 3, 64, 64])
    for number in (1, 2, 5):
        paddle.seed(0)
        net = _sequence()
        fuse(net)
        _prepare(net, "qat_w8a8", images)
        with on_threads(number):
            found.append(_step(net, images))
    _assert_same(found[0], found[1])
    _assert_same(found[0], found[2])


def _halved(layer: nn.Layer) -> None:
    """Put a class of one's own in the place of an input's quantizer of training."""
    own = type(layer.input_quantizer)

    class Halved(own):
        def operand(self, x, *rest):
            return super().operand(x * 0.5, *rest)

    object.__setattr__(layer.input_quantizer, "__class__", Halved)


def _hidden_quantizer(layer: nn.Layer) -> None:
    object.__setattr__(layer, "output_quantizer", lambda x: x)


def _hidden_weight(layer: nn.Layer) -> None:
    object.__setattr__(layer, "effective_weight_and_bias", lambda: (layer.weight * 0.5, None))


@pytest.mark.parametrize(
    ("recipe", "place", "change"),
    [
        ("qt_w4a4g4_fast", "4.expand_conv.0", _halved),
        ("qat_w8a8", "0.1", _hidden_quantizer),
        ("qat_w8a8", "4.expand_conv.0", _hidden_weight),
    ],
)
def test_what_a_user_puts_into_a_layer_counts(recipe: str, place: str, change: Callable) -> None:
    found, images = [], paddle.randn([2, 3, 32, 32])
    for is_fused, is_changed in ((False, False), (False, True), (True, True)):
        paddle.seed(0)
        net = _sequence()
        if is_fused:
            fuse(net)
        _prepare(net, recipe, images)
        if is_changed:
            change(dict(net.named_sublayers())[place])
        found.append(_step(net, images))
    _assert_same(*found[1:])
    assert not np.array_equal(found[0]["output"], found[1]["output"])


def test_gradients_of_qat_follow_the_instructions() -> None:
    """Which algorithm pays is chosen again when the kernels use other instructions."""
    kinds = [kind for kind in ("avx2", "baseline") if kind in kernels().variants]
    images, found = paddle.randn([2, 16, 16, 16]), []
    for kind in (*kinds, *kinds):
        paddle.seed(0)
        net = nn.Sequential(*[nn.Conv2D(16, 16, 3, padding=1, bias_attr=False) for _ in range(3)])
        _prepare(net, "qat_w8a8", images)
        with using(kind):
            found.append(_step(net, images))
    for first, again in zip(found, found[len(kinds) :], strict=False):
        _assert_same(first, again)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_qat_of_values_that_are_not_finite_is_as_unfused(value: str) -> None:
    found, images = [], paddle.randn([2, 3, 32, 32])
    for is_fused in (False, True):
        paddle.seed(0)
        net = _sequence()
        if is_fused:
            fuse(net)
        _prepare(net, "qat_w8a8", images)
        broken = images.clone()
        broken[0, 0, 3, 3] = float(value)
        found.append(_step(net, broken) | {f"again {k}": v for k, v in _step(net, images).items()})
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)


def _nodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """The arguments of every ConvNormNode from now on."""
    nodes, apply = [], ConvNormNode.apply
    monkeypatch.setattr(ConvNormNode, "apply", lambda *given: nodes.append(given) or apply(*given))
    return nodes


@pytest.mark.parametrize("recipe", [None, "qt_w4a4g4", "qt_w8a8g8"])
def test_which_convolutions_are_in_the_node(recipe: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In low precision all of them; the first one, in fp32, with its max-pool."""
    nodes, net = _nodes(monkeypatch), vision.resnet18(num_classes=10)
    images = paddle.randn([4, 3, 64, 64])
    if recipe:
        prepare(net, load_recipe(recipe), images)
    fuse(net)
    _step(net, images)
    quantized = recipe is not None and recipe.startswith("qt")
    assert len(nodes) == (20 if quantized else 1)
    assert [norm.pool is not None for *_, norm in nodes] == [True] + [False] * 19 * quantized
    saved = [norm.multiples for *_, norm in nodes[1:]]
    assert all(multiples.bytes == (2 if recipe == "qt_w4a4g4" else 3) for multiples in saved)


@pytest.mark.parametrize("place", ["conv1", "bn1", "relu", "maxpool"])
def test_a_hook_in_the_stem_is_called(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, plain = _nodes(monkeypatch), vision.resnet18(num_classes=10)
    fused, seen = copy.deepcopy(plain), []
    fuse(fused)
    getattr(fused, place).register_forward_post_hook(lambda _layer, _inputs, out: seen.append(out.shape))
    images = paddle.randn([2, 3, 32, 32])
    _assert_same(_step(plain, images), _step(fused, images))
    assert len(seen) == 1 and not nodes


@pytest.mark.parametrize("size", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (4, 4, 0), ("3", 2, 1)])
def test_max_pools_of_the_stem(size: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, stride, padding = size
    nodes, plain = _nodes(monkeypatch), vision.resnet18(num_classes=10)
    plain.maxpool = nn.MaxPool2D(int(kernel), stride, padding, ceil_mode=kernel == "3")
    fused = copy.deepcopy(plain)
    fuse(fused)
    images = paddle.randn([2, 3, 46, 46])
    _assert_same(_step(plain, images), _step(fused, images))
    assert len(nodes) == (kernel != 4)


def test_a_not_a_number_in_the_images_comes_through_as_unfused() -> None:
    plain = vision.resnet18(num_classes=10)
    fused = copy.deepcopy(plain)
    fuse(fused)
    images = paddle.randn([2, 3, 32, 32])
    images[0, 0, 3, 3] = float("nan")
    a, b = _step(plain, images), _step(fused, images)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_there_are_no_second_order_gradients() -> None:
    blocks, x = vision.resnet18().layer1, paddle.randn([2, 64, 8, 8])
    prepare(blocks, load_recipe("qt_w8a8g8"), x)  # but for the first and the last layer
    fuse(blocks)
    learned = [p for p in blocks.parameters() if not p.stop_gradient]
    with fast_norm_ops(), pytest.raises((OSError, LowbitError), match="second-order"):
        paddle.grad(blocks(x).sum(), learned, create_graph=True)


def test_a_weight_changed_before_backward_changes_nothing() -> None:
    """Though the stem's output is computed again in backward."""
    found, images = [], paddle.randn([2, 3, 32, 32])
    for changed in (False, True):
        paddle.seed(0)
        net = vision.resnet18(num_classes=10)
        fuse(net)
        with fast_convolutions(), fast_norm_ops():
            loss = net(images).sum()
            if changed:
                net.conv1.weight.set_value(net.conv1.weight * 2)
            loss.backward()
        found.append(net.conv1.weight.grad.numpy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("recipe", ["qt_w8a8g8", "qat_w8a8"])
def test_a_graph_that_paddle_grad_retains_gives_the_same_twice(recipe: str) -> None:
    net, images = vision.resnet18(num_classes=10), paddle.randn([2, 3, 32, 32])
    _prepare(net, recipe, images)
    fuse(net)
    net.train()
    weights = [p for p in net.parameters() if not p.stop_gradient]
    with fast_convolutions(), fast_norm_ops():
        loss = net(images).sum()
        once, twice = (paddle.grad(loss, weights, retain_graph=True) for _ in range(2))
    for one, other in zip(once, twice, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_fusing_is_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = fused_steps.fused_batch_norm
    monkeypatch.setattr(fused_steps, "fused_batch_norm", lambda *a, **n: calls.append(n) or original(*a, **n))
    net = build_model("resnet20", 10)
    fuse(net)
    _step(net, paddle.randn([2, 3, 32, 32]))
    assert len(calls) == 19 and all(call["activation"] == Activation.RELU for call in calls)


@pytest.mark.skipif(kernels() is None, reason="no kernels")
@pytest.mark.parametrize("activation", [None, F.relu, F.hardswish])
def test_ranges_of_a_step(activation: Callable | None) -> None:
    net = nn.Sequential(*(nn.Conv2D(16, 16, 3, padding=1, bias_attr=False) for _ in range(3)))
    x = paddle.randn([2, 16, 8, 8])
    prepare(net, load_recipe("qt_w4a4g4_fast"), x)
    net.train()
    conv, norm = net[1], nn.BatchNorm2D(16)  # the first and the last are in fp32
    assert conv_norm_act_ranges(conv, norm, x, activation)[1] is None  # outside of fast_norm_ops
    with fast_norm_ops():
        y, ranges = conv_norm_act_ranges(conv, norm, x, activation)
        np.testing.assert_array_equal(ranges.numpy(), y.abs().max([2, 3], keepdim=True).numpy())
        step = conv.backward_quantizers.draws.step
        found = []
        for known in (ranges, None):
            step.set_value(paddle.full([1], 5, "int64"))
            found.append(conv_norm_act(conv, norm, y, activation, ranges=known).numpy())
    np.testing.assert_array_equal(*found)


def test_the_report_names_each_batch_norm_that_stays_and_no_other() -> None:
    def report(net: nn.Layer) -> tuple[set[str], set[str]]:
        found = fuse(net)
        return set(found.fused), set(found.unfused)

    found = fuse(vision.mobilenet_v2())
    assert "residual sum" in found.fused["features.3"] and "residual" not in found.fused["features.1"]
    assert {"features.1.conv.2", "features.2.conv.3"} <= set(found.unfused)
    assert "features.3.conv.3" not in found.unfused
    fused, unfused = report(vision.mobilenet_v3_small())
    assert {"blocks.0.linear_conv.1", "blocks.1.linear_conv.1"} <= unfused
    assert "blocks.2" in fused and "blocks.2.linear_conv.1" not in unfused
    two = nn.Sequential(
        *(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU(), nn.Conv2D(4, 4, 3), nn.BatchNorm2D(4)),
        nn.LeakyReLU(),
    )
    found = fuse(two)
    assert found.fused == {"": "batch norm + ReLU: 1"}
    assert found.unfused == {"4": "no ReLU, ReLU6 or hard swish follows it"}


def test_unfuse_gives_classes_back() -> None:
    net = build_model("resnet20", 10)
    before = [type(layer) for layer in net.sublayers(include_self=True)]
    names = list(net.state_dict())
    fuse(net)
    assert list(net.state_dict()) == names
    assert [type(layer) for layer in net.sublayers(include_self=True)] != before
    unfuse(net)
    assert [type(layer) for layer in net.sublayers(include_self=True)] == before


@pytest.mark.parametrize("place", ["bn1", "relu"])
def test_a_hook_on_an_inner_layer_is_called(place: str) -> None:
    plain = vision.resnet18(num_classes=10)
    fused = copy.deepcopy(plain)
    fuse(fused)
    seen: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for number, net in enumerate((plain, fused)):
        layer = getattr(net.layer1[0], place)
        layer.register_forward_post_hook(lambda _l, _i, out, n=number: seen[n].append(out.numpy()))
    images = paddle.randn([2, 3, 32, 32])
    _assert_same(_step(plain, images), _step(fused, images))
    assert seen[0] and all(np.array_equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_relu_of_a_named_group_sees_what_was_overwritten(overwrite: bool) -> None:
    class Block(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.relu, self.overwrite = nn.BatchNorm2D(3), nn.ReLU(), False

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            y = self.bn(x)
            if self.overwrite:  # raises no version
                y.set_value(paddle.full_like(y, -1.0))
            return self.relu(y)

    net, x = Block(), paddle.randn([2, 3, 4, 4])
    with pytest.raises(LowbitError, match=r"the example is a paddle\.Tensor, got ndarray"):
        fuse(net, groups=[["bn", "relu"]], example=x.numpy())
    fuse(net, groups=[["bn", "relu"]], example=x)
    net.overwrite = overwrite
    with fast_norm_ops():
        assert bool((net(x) == 0).all()) == overwrite


def test_mixed_precision_runs_unfused() -> None:
    paddle.seed(0)
    plain = build_model("resnet20", 10)
    fused = copy.deepcopy(plain)
    fuse(fused)
    images = paddle.randn([2, 3, 32, 32])
    with rounding(BF16, "O2"):
        _assert_same(_step(plain, images), _step(fused, images))
    with fast_norm_ops(), rounding(BF16, "O2"):
        _assert_same(_step(plain, images), _step(fused, images))


def test_another_activation_runs_unfused() -> None:
    plain = vision.resnet18(num_classes=10)
    for block in plain.sublayers():
        if hasattr(block, "relu"):
            block.relu = nn.LeakyReLU()
    fused = copy.deepcopy(plain)
    fuse(fused)
    images = paddle.randn([2, 3, 32, 32])
    _assert_same(_step(plain, images), _step(fused, images))


def test_a_subclass_with_its_own_forward_is_not_fused() -> None:
    class Own(vision.resnet.BasicBlock):
        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return F.gelu(self.bn1(self.conv1(x)))

    block = Own(4, 4)
    assert not fuse(block).fused
    assert "Own" in fuse(block).unfused["bn1"]


def test_evaluation_is_untouched() -> None:
    plain = vision.resnet18(num_classes=10)
    fused = copy.deepcopy(plain)
    fuse(fused)
    plain.eval(), fused.eval()
    images = paddle.randn([2, 3, 32, 32])
    assert np.array_equal(plain(images).numpy(), fused(images).numpy())


def test_a_fused_net_is_copied_and_traced(tmp_path) -> None:
    net = build_model("resnet20", 10)
    fuse(net)
    net = copy.deepcopy(net)
    net.eval()
    images = paddle.randn([2, 3, 32, 32])
    expected = net(images).numpy()
    spec = [paddle.static.InputSpec([None, 3, 32, 32])]
    paddle.jit.save(paddle.jit.to_static(net, input_spec=spec), str(tmp_path / "net"))
    found = paddle.jit.load(str(tmp_path / "net"))(images).numpy()
    assert np.allclose(found, expected, atol=1e-5)


def test_layers_by_name() -> None:
    paddle.seed(0)
    plain = OwnNet()
    fused = copy.deepcopy(plain)
    images = paddle.randn([2, 3, 8, 8])
    report = fuse(fused, [["conv", "bn", "relu"]], example=images)
    assert "bn" in report.fused
    _assert_same(_step(plain, images), _step(fused, images))


def test_a_second_reader_is_found_by_the_example() -> None:
    net = OwnNet(second_reader=True)
    kinds = [type(layer) for layer in net.sublayers()]
    with pytest.raises(LowbitError, match="would change the network's results"):
        fuse(net, [["bn", "relu"]], example=paddle.randn([2, 3, 8, 8]))
    assert [type(layer) for layer in net.sublayers()] == kinds


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([["bm", "relu"]], 'no layer "bm".*bn'),
        ([["relu", "bn"]], "name them in this order"),
        ([["bn"]], "name them in this order"),
    ],
)
def test_wrong_groups(groups: list[list[str]], message: str) -> None:
    with pytest.raises(LowbitError, match=message):
        fuse(OwnNet(), groups, example=paddle.randn([2, 3, 8, 8]))
    with pytest.raises(LowbitError, match="example"):
        fuse(OwnNet(), [["bn", "relu"]])


def test_norm_act_outside_of_a_block() -> None:
    norm, x = nn.BatchNorm2D(3), paddle.randn([2, 3, 4, 4])
    x.stop_gradient = False
    expected = F.relu(copy.deepcopy(norm)(x) + x)
    with fast_norm_ops():
        assert np.allclose(norm_act(norm, x, F.relu, x).numpy(), expected.numpy(), atol=1e-6)


@pytest.mark.skipif(kernels() is None or "avx2" not in kernels().variants, reason="Winograd needs AVX2 here")
@pytest.mark.parametrize("recipe", ["qt_w8a8g8", "qt_w4a4g4_fast"])
def test_a_product_as_multiples_gives_the_bits_of_one_in_fp32(recipe, monkeypatch):
    images = paddle.to_tensor(np.random.default_rng(0).standard_normal([2, 3, 32, 32]).astype(np.float32))
    originals = {"forward_of_unrounded": forward_of_unrounded, "forward_in_multiples": forward_in_multiples}

    def stepped(*allowed: str) -> tuple[dict[str, np.ndarray], int]:
        """A step, and how many products these functions gave; the others give none."""
        taken = []

        def noted(function: Callable[..., Any], *operands: Any) -> Any:
            found = function(*operands)
            taken.extend([found] * (found is not None))
            return found

        for name, function in originals.items():
            own = partial(noted, function) if name in allowed else lambda *_: None
            monkeypatch.setattr(qt_autograd, name, own)
        paddle.seed(0)
        net = build_model("resnet20", 10)
        fuse(net)
        return _step(prepare(net, load_recipe(recipe), images), images), len(taken)

    with using("avx2"):
        in_one_call, in_multiples, expected = (
            stepped(*names) for names in ([*originals][:1], [*originals][1:], [])
        )
    assert [count for _, count in (in_one_call, in_multiples, expected)] == [16, 16, 0]  # without a stride
    _assert_same(in_one_call[0], expected[0])
    _assert_same(in_multiples[0], expected[0])
