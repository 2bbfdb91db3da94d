"""Forwards that are chains of layers, and what looks like one and is not."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.nn import calibrate
from lowbit.nn.chain_forward import chain_modules, chain_of
from lowbit.nn.convert import prepare
from lowbit.nn.fused_blocks import fuse, unfuse
from lowbit.recipe import load_recipe


class Base(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU()
        self.act: Any = True


class Statements(Base):
    def forward(self, inputs: paddle.Tensor) -> paddle.Tensor:
        """As PaddleClas's ConvBNLayer."""
        y = self.conv(inputs)
        y = self.bn(y)
        if self.act:
            y = self.relu(y)
        return y


class Nested(Base):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return F.relu(self.bn(self.conv(x)))


class NotNone(Base):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = self.bn(self.conv(x))
        if self.act is not None:
            x = F.relu6(x)
        return x


class OldNorm(Statements):
    """The forward is inherited."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm(4)


CHAINS = [Statements, Nested, NotNone, OldNorm]


class SecondReader(Base):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        y = self.bn(self.conv(x))
        z = self.relu(y)
        return z + y


class EarlierVariable(Base):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        y = self.bn(self.conv(x))
        z = self.relu(y)  # noqa: F841
        return y


class Else(Base):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = self.bn(self.conv(x))
        if self.act:  # noqa: SIM108
            x = self.relu(x)
        else:
            x = x * 2
        return x


class OtherVariableInCondition(Base):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        y = self.bn(self.conv(x))
        if self.act:
            x = self.relu(y)
        return x


class Keyword(Base):
    def forward(self, x: paddle.Tensor, scale: float = 1.0) -> paddle.Tensor:
        return self.relu(self.bn(self.conv(x)))


class OtherFunction(Base):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return np.negative(self.relu(self.bn(self.conv(x))))


class Decorated(Base):
    @paddle.no_grad()
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.relu(self.bn(self.conv(x)))


class OwnAttributes(Statements):
    def __getattr__(self, name: str) -> Any:
        return super().__getattr__("bn" if name == "relu" else name)


@pytest.mark.parametrize("kind", CHAINS)
def test_chains(kind: type[Base]) -> None:
    block = kind()
    modules = chain_modules(block, kind.forward)
    assert modules is not None and modules[:2] == [block.conv, block.bn]
    assert type(modules[2]) in (nn.ReLU, nn.ReLU6) and len(modules) == 3


@pytest.mark.parametrize(
    "kind",
    [
        *(SecondReader, EarlierVariable, Else, OtherVariableInCondition, Keyword, OtherFunction, Decorated),
        OwnAttributes,
    ],
)
def test_what_is_no_chain(kind: type[Base]) -> None:
    block = kind()
    assert chain_modules(block, kind.forward) is None
    assert not fuse(block).fused


def test_attributes_count_when_it_runs() -> None:
    block = Statements()
    assert len(chain_modules(block, Statements.forward) or ()) == 3
    block.act = None
    assert len(chain_modules(block, Statements.forward) or ()) == 2


@pytest.mark.parametrize("later", [None, "def forward(self, x):\n    return self.bn(self.relu(x))\n"])
def test_the_source_must_be_that_of_the_code(tmp_path: Path, later: str | None) -> None:
    file = tmp_path / "changing.py"
    file.write_text("def forward(self, x):\n    return self.relu(self.bn(x))\n")
    spec = importlib.util.spec_from_file_location("changing", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if later is None:
        file.unlink()
    else:
        file.write_text(later)
    assert chain_of(module.forward) is None


class Switching(nn.Layer):
    """Changes an attribute of the block that calls it."""

    def __init__(self, block: nn.Layer) -> None:
        super().__init__()
        self.owner = [block]

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        self.owner[0].act = not self.owner[0].act
        return x * 1


def _switching_layer(block: Base) -> None:
    block.bn = nn.Sequential(nn.BatchNorm2D(4), Switching(block))


def _switching_hook(block: Base) -> None:
    def switch(*_: Any) -> None:
        block.act = not block.act

    block.conv.register_forward_post_hook(switch)


def _own_method(block: Base) -> None:
    plain = block.relu.forward
    block.relu.forward = lambda x: plain(x) * 2


def _layer_in_the_place_of_the_flag(block: Base) -> None:
    block.act = nn.Sequential()  # empty: false


def _method_in_the_place_of_a_layer(block: Base) -> None:
    bn = block.bn
    block.__dict__["bn"] = lambda x: bn(x) * 3


@pytest.mark.parametrize(
    "change",
    [
        lambda block: None,
        lambda block: setattr(block, "act", False),
        _switching_layer,
        _switching_hook,
        _own_method,
        _layer_in_the_place_of_the_flag,
        _method_in_the_place_of_a_layer,
    ],
)
@pytest.mark.parametrize("recipe", [None, "qt_w4a4g4_fast", "qat_w8a8"])
@pytest.mark.parametrize("before", [True, False], ids=["changed first", "fused first"])
def test_fused_and_unfused_give_the_same(change: Any, recipe: str | None, before: bool) -> None:
    paddle.seed(0)
    plain = nn.Sequential(
        Statements(),
        nn.Conv2D(4, 3, 1),
        Nested(),
        nn.Conv2D(4, 3, 1),
        NotNone(),
        nn.Conv2D(4, 3, 1),
        OldNorm(),
    )
    fused, x = copy.deepcopy(plain), paddle.randn([2, 3, 12, 12])
    for net in (plain, fused):
        if before:
            change(net[0])
        if net is fused:
            fuse(net)
        if recipe is not None:
            prepare(net, load_recipe(recipe), x)
            calibrate(net, [x])
        if not before:
            change(net[0])
    results = []
    for net in (plain, fused):
        with fast_convolutions(), fast_norm_ops():
            outputs = [net.train()(x) for _ in range(2)]
            sum((y * y).mean() for y in outputs).backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        results.append([*outputs, *gradients, net[2].bn._mean, net.eval()(x)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


def test_it_is_fused_and_undone() -> None:
    net = nn.Sequential(Statements(), OldNorm(), Nested())
    names = list(net.state_dict())
    found = fuse(net)
    assert found.fused == dict.fromkeys("012", "batch norm + ReLU: 1") and not found.unfused
    assert list(net.state_dict()) == names and isinstance(net[0], Statements)
    unfuse(net)
    assert type(net[0]) is Statements


def test_the_report_says_why_not() -> None:
    net = nn.Sequential(Statements(), SecondReader())
    net[0].act = False
    assert fuse(net).unfused == {
        "0.bn": "no ReLU, ReLU6 or hard swish follows it",
        "1.bn": "the forward of SecondReader is neither known nor a chain of layers",
    }
