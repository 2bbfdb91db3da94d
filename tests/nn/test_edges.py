"""find_edges: a tensor between quantized layers has a layer's own quantizer, a module's, or is reported."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
import pytest
from paddle import Tensor, nn
from paddle.vision.models import mobilenet_v2, mobilenet_v3_small, resnet18

from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.nn.edges import Edge, find_edges
from lowbit.recipe import find_layers
from tests.support.networks import ResidualBlock


def edges_of(net: nn.Layer, size: int = 32, channels: int = 3, left_out: tuple[str, ...] = ()):
    layers = [layer.name for layer in find_layers(net) if layer.name not in left_out]
    return find_edges(net, [paddle.ones([1, channels, size, size])], layers)


class Branches(nn.Layer):
    def __init__(self, join: str) -> None:
        super().__init__()
        self.join = join
        self.stem, self.left, self.right = (nn.Conv2D(4, 4, 1) for _ in range(3))
        self.head = nn.Conv2D(8 if join == "concat" else 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = self.left(x), self.right(x)
        return self.head(paddle.concat([a, b], axis=1) if self.join == "concat" else a * F.sigmoid(b))


def test_one_layer_that_reads_keeps_its_own_quantizer():
    net = nn.Sequential(
        nn.Conv2D(3, 4, 1), nn.BatchNorm2D(4), nn.ReLU6(), nn.MaxPool2D(2), nn.Conv2D(4, 2, 1)
    )
    assert edges_of(net).found == ()


class Padded(nn.Layer):
    def __init__(self, pads: list[int], value: float) -> None:
        super().__init__()
        self.pads, self.value = pads, value

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.pads, value=self.value)


@pytest.mark.parametrize("pads", [[1, 2, 0, 1], [0, 0, 0, 0, 1, 2, 0, 1]])
def test_padding_with_zeros_keeps_a_grid(pads):
    net = [nn.Conv2D(3, 4, 1), nn.ReLU(), nn.Conv2D(4, 2, 1)]
    net.insert(2, Padded(pads, 0.0))
    assert edges_of(nn.Sequential(*net)).found == ()
    net[2] = Padded(pads, 0.5)
    assert edges_of(nn.Sequential(*net)).found != ()


def test_a_residual_block_owns_its_sum_and_its_input():
    found = edges_of(nn.Sequential(nn.Conv2D(3, 4, 1), ResidualBlock(), ResidualBlock(), nn.Conv2D(4, 4, 1)))
    assert found.without_module == ()
    assert found.found == (
        Edge("0", "output", ("1.first",), "1.first"),
        Edge("1.bn", "output", (), "2.first"),
        Edge("1", "output", ("2.first",), "2.first"),
        Edge("2.bn", "output", (), "3"),
    )


def test_a_tensor_that_is_only_an_input_belongs_to_who_takes_it():
    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block, self.head = nn.Conv2D(3, 4, 1), ResidualBlock(), nn.Conv2D(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(F.relu(self.stem(x))))

    assert Edge("block", "input", ("block.first",), "block.first") in edges_of(Net()).found


def test_what_no_module_owns_is_reported_not_guessed():
    found = edges_of(Branches("multiply"), channels=4)
    assert [edge.owner for edge in found.found] == ["stem", "left", "right"]
    assert found.without_module == ("the output of sigmoid of right, which multiply reads",)
    assert any("1 of" not in line and "sigmoid" in line for line in found.lines())


def test_all_operands_of_a_concatenation():
    assert [e.owner for e in edges_of(Branches("concat"), channels=4).found] == ["stem", "left", "right"]


def test_a_module_that_is_called_twice_owns_nothing():
    class Twice(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2D(3, 3, 1) for _ in range(3))
            self.act = nn.Hardswish()

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(self.a(x))
            return self.c(self.act(self.b(x)) + x)

    found = edges_of(Twice())
    assert [edge.owner for edge in found.found] == ["a", "b"]  # the two results of `act` have no module
    assert len(found.without_module) == 2


def test_only_between_quantized_layers():
    net = nn.Sequential(
        nn.Conv2D(3, 4, 1), nn.Hardswish(), nn.Conv2D(4, 4, 1), nn.Hardswish(), nn.Conv2D(4, 2, 1)
    )
    assert [edge.owner for edge in edges_of(net).found] == ["0", "2"]
    assert [edge.owner for edge in edges_of(net, left_out=("0",)).found] == ["2"]
    assert [edge.owner for edge in edges_of(net, left_out=("4",)).found] == ["0"]


@pytest.mark.parametrize(
    ("build", "count"), [(mobilenet_v2, 21), (resnet18, 20), (mobilenet_v3_small, 59), ("resnet20", 19)]
)
def test_every_edge_of_known_models_has_a_module(build, count):
    net = build_model(build, 10) if isinstance(build, str) else build(num_classes=10)
    found = edges_of(net, size=64)
    assert (len(found.found), found.without_module) == (count, ())
    owners = [(edge.owner, edge.place) for edge in found.found]
    assert len(set(owners)) == len(owners)


def test_a_model_without_a_program_is_an_error():
    class OnlyDynamic(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2D(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            if not paddle.in_dynamic_mode():
                raise TypeError("only in dynamic mode")
            return self.conv(x)

    with pytest.raises(LowbitError, match=r"only in dynamic mode.*leave out outputs: quantized"):
        edges_of(OnlyDynamic())


class Dropped(nn.Layer):
    """Two layers read one tensor, one of them behind a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.relu, self.drop = nn.Conv2D(3, 4, 1), nn.ReLU(), nn.Dropout(0.5)
        self.left, self.right = nn.Conv2D(4, 2, 1), nn.Conv2D(4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.relu(self.stem(x))
        return self.left(x), self.right(self.drop(x))


def test_behind_a_dropout_a_layer_has_a_scale_of_its_own():
    """In training it gets values that are larger than any the other reader gets."""
    assert edges_of(Dropped()).found == (Edge("relu", "output", ("left",), "left"),)


@pytest.mark.parametrize(
    ("pool", "count"),
    [
        (nn.AdaptiveAvgPool2D(1), 64),
        (nn.AvgPool2D(8), 64),
        (nn.AvgPool2D(4, stride=8), 16),
        (nn.AvgPool2D(8, stride=8, padding=1), None),
        (nn.AvgPool2D(2), None),
    ],
)
def test_the_pixels_of_a_mean_are_counted(pool, count):
    net = nn.Sequential(nn.Conv2D(3, 4, 1), pool, nn.Conv2D(4, 2, 1))
    means = [one.count for one in edges_of(net, size=8).roundings if one.kind == "mean"]
    assert means == ([] if count is None else [count])
