from __future__ import annotations

import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.recipe import find_layers


def test_names_numbers_types_and_shapes(tiny):
    found = [(layer.index, layer.name, layer.type, layer.shape) for layer in find_layers(tiny)]
    assert found == [(0, "conv", "Conv2D", (8, 3, 3, 3)), (1, "head", "Linear", (128, 4))]


def test_a_transposed_convolution():
    (layer,) = find_layers(nn.Sequential(nn.Conv2DTranspose(4, 6, 3)))
    assert (layer.type, layer.shape) == ("Conv2DTranspose", (4, 6, 3, 3))


@pytest.mark.parametrize(("name", "count"), [("resnet20", 20), ("mobilenet_v3_small", 54), ("resnet18", 21)])
def test_every_convolution_and_linear_layer_counts(name, count):
    assert len(find_layers(build_model(name, 10))) == count


def test_a_layer_of_two_parents_is_one_layer_with_two_names():
    shared = nn.Linear(4, 4)
    first, second = find_layers(nn.Sequential(shared, nn.Linear(4, 4), nn.Sequential(shared)))
    assert (first.index, first.name, first.names) == (0, "0", ("0", "2.0"))
    assert (second.index, second.names) == (1, ("1",))


def test_skip_quant():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].skip_quant = True
    model[1].skip_quant = False
    assert [layer.left_alone for layer in find_layers(model)] == ["skip_quant", ""]


class _Renamed(nn.Linear):
    """The same computation under another name."""


class _Odd(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def test_a_class_of_its_own_is_left_alone_where_it_computes_something_else():
    renamed, odd = find_layers(nn.Sequential(_Renamed(4, 4), _Odd(4, 4)))
    assert (renamed.type, renamed.left_alone) == ("Linear", "")
    assert odd.left_alone == "_Odd has its own forward"


def test_names_are_the_users_inside_data_parallel(tiny, monkeypatch):
    class Wrapped(nn.Layer):
        def __init__(self, layers):
            super().__init__()
            self._layers = layers

    monkeypatch.setattr(paddle, "DataParallel", Wrapped)  # the real one starts a process group
    assert [layer.name for layer in find_layers(Wrapped(tiny))] == ["conv", "head"]


def test_nothing_to_quantize():
    with pytest.raises(
        LowbitError, match="Sequential has nothing to quantize: no Conv2D, Conv2DTranspose, Li"
    ):
        find_layers(nn.Sequential(nn.ReLU(), nn.Conv1D(3, 3, 3)))
    with pytest.raises(LowbitError, match=r"it is one itself: put it into an nn\.Sequential"):
        find_layers(nn.Linear(3, 3))
