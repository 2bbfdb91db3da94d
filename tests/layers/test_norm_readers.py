"""Who reads a batch norm's result is found, whatever the model's code looks like."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.layers.norm_readers import RECTIFIED_SUM, RELU, SUM, note_readers, noted_reader
from lowbit.models import build_model


class _Block(nn.Layer):
    """A batch norm, and what `read` does with its result and its input."""

    def __init__(self, read) -> None:
        super().__init__()
        self.conv, self.norm, self.read = nn.Conv2D(3, 3, 1), nn.BatchNorm2D(3), read

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.read(self.norm(x), x)


def _added_in_place(y: Tensor, x: Tensor) -> Tensor:
    y += x
    return F.relu(y)


@pytest.mark.parametrize(
    ("read", "reader"),
    [
        (lambda y, x: F.relu(y), RELU),
        (lambda y, x: nn.ReLU()(y) * 2, RELU),
        (lambda y, x: F.relu(y + x), RECTIFIED_SUM),
        (lambda y, x: F.relu(x + y), RECTIFIED_SUM),
        (lambda y, x: F.relu(paddle.add(x, y)), RECTIFIED_SUM),
        (_added_in_place, RECTIFIED_SUM),
        (lambda y, x: F.hardswish(y + x), SUM),
        (lambda y, x: y + x, SUM),
        (lambda y, x: [F.relu(y + x), {"sum": x}], RECTIFIED_SUM),
        (lambda y, x: F.relu(y) + y, None),
        (lambda y, x: F.relu(y + y), None),
        (lambda y, x: (F.relu(y), y), None),
        (lambda y, x: F.hardswish(y), None),
        (lambda y, x: y, None),
        (lambda y, x: x, None),
    ],
)
def test_the_only_reader_is_noted(read, reader):
    block = _Block(read)
    assert note_readers(block, paddle.randn([2, 3, 4, 4])) == (reader is not None)
    assert noted_reader(block.norm.weight) == reader


def test_a_sum_that_is_read_twice_is_only_a_sum():
    def read(y: Tensor, x: Tensor) -> Tensor:
        total = y + x
        return F.relu(total) + total.mean()

    block = _Block(read)
    note_readers(block, paddle.randn([2, 3, 4, 4]))
    assert noted_reader(block.norm.weight) == SUM


@pytest.mark.parametrize(("second", "reader"), [(F.relu, RELU), (F.hardswish, None)])
def test_of_a_norm_that_is_called_twice_both_readers_count(second, reader):
    norm = nn.BatchNorm2D(3)

    class Twice(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: Tensor) -> Tensor:
            return second(self.norm(F.relu(self.norm(x))))

    note_readers(Twice(), paddle.randn([2, 3, 4, 4]))
    assert noted_reader(norm.weight) == reader


def test_where_somebody_listens_nothing_waits():
    block = _Block(lambda y, x: F.relu(y))
    block.norm.register_forward_post_hook(lambda layer, given, out: None)
    assert note_readers(block, paddle.randn([2, 3, 4, 4])) == 0


def test_of_a_model_that_does_not_run_nothing_is_known():
    block = _Block(lambda y, x: F.relu(y))
    note_readers(block, paddle.randn([2, 3, 4, 4]))
    assert note_readers(block, paddle.randn([2, 1, 4, 4])) == 0
    assert noted_reader(block.norm.weight) is None and not block.norm._forward_post_hooks


def test_a_new_look_forgets_the_old_one():
    block = _Block(lambda y, x: F.relu(y))
    note_readers(block, paddle.randn([2, 3, 4, 4]))
    block.read = lambda y, x: F.hardswish(y)
    assert note_readers(block, paddle.randn([2, 3, 4, 4])) == 0
    assert noted_reader(block.norm.weight) is None


@pytest.mark.parametrize(("name", "count"), [("resnet20", 19), ("resnet18", 20)])
def test_in_a_resnet_every_norm_has_a_reader(name, count):
    assert note_readers(build_model(name, 10), paddle.randn([1, 3, 32, 32])) == count


def test_the_model_stays_as_it_was():
    layers = [nn.Conv2D(3, 3, 1), nn.BatchNorm2D(3), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm2D(3)]
    model = nn.Sequential(*layers)
    model[4].eval()
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    example, random_state = paddle.randn([2, 3, 4, 4]), paddle.get_rng_state()
    assert note_readers(model, example) == 1
    assert [layer.training for layer in model] == [True, True, True, True, False]
    assert not model[1]._forward_post_hooks
    drawn = paddle.rand([3]).numpy()
    paddle.set_rng_state(random_state)
    np.testing.assert_array_equal(drawn, paddle.rand([3]).numpy())
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
