"""Any iterable becomes inputs and labels."""

from __future__ import annotations

import doctest

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.api import data, result
from lowbit.api.data import Batches, example_inputs, input_names
from lowbit.errors import LowbitError
from tests.support.own_networks import Net, TwoInputs

X, Y = np.zeros((40, 3), np.float32), np.arange(40)


class One(nn.Layer):
    def forward(self, x, mask=None):
        return x


def sizes(net, given, **options) -> list[int]:
    return [batch.size for batch in Batches(net, given, **options)]


@pytest.mark.parametrize("module", [data, result])
def test_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "given",
    [
        [X, X],
        [paddle.to_tensor(X)] * 2,
        [(X, Y)] * 2,
        [[X, Y[:, None]]] * 2,
        [{"x": X, "label": Y}] * 2,
        [{"image": X}] * 2,
        [((X,), Y)] * 2,
        [({"x": X}, Y)] * 2,
        ((X, Y) for _ in range(2)),
    ],
    ids=["arrays", "tensors", "pairs", "lists", "dicts", "any name", "nested", "nested dict", "generator"],
)
def test_batches_of_one_input(given):
    batches = Batches(One(), given)
    for _ in range(2):
        assert [batch.size for batch in batches] == [40, 40]
    for batch in batches:
        assert len(batch.inputs) == 1 and list(batch.inputs[0].shape) == [40, 3]
        if batch.labels is not None:
            np.testing.assert_array_equal(batch.classes, Y)


def test_a_data_loader():
    dataset = paddle.io.TensorDataset([paddle.to_tensor(X), paddle.to_tensor(Y)])
    batches = list(Batches(One(), paddle.io.DataLoader(dataset, batch_size=16)))
    assert [batch.size for batch in batches] == [16, 16, 8]
    np.testing.assert_array_equal(np.concatenate([batch.classes for batch in batches]), Y)
    with pytest.raises(LowbitError, match="DataLoader"):
        Batches(One(), dataset)


@pytest.mark.parametrize("given", [X, paddle.to_tensor(X), (X, Y), {"x": X, "y": Y}])
def test_arrays_are_cut_into_batches(given):
    assert sizes(One(), given) == [32, 8]
    assert sizes(One(), given, limit=1) == [32]


def test_several_inputs():
    left, right = np.zeros((5, 6)), np.ones((5, 4))
    for item in ((left, right), (left, right, Y[:5]), ((left, right), Y[:5]), {"right": right, "left": left}):
        inputs = next(iter(Batches(TwoInputs(), [item]))).inputs
        assert [list(one.shape) for one in inputs] == [[5, 6], [5, 4]]
        assert {one.dtype for one in inputs} == {paddle.float32}
    assert input_names(TwoInputs(), 2) == ("left", "right")
    assert len(example_inputs(paddle.DataParallel(TwoInputs()), (left, right))) == 2


def test_optional_inputs_are_given_nested():
    batch = next(iter(Batches(One(), [((X, X), Y)])))
    assert len(batch.inputs) == 2 and batch.labels is not None


@pytest.mark.parametrize(
    ("net", "given", "message"),
    [
        (One(), [], "have no batches"),
        (One(), "images/", "data must be batches"),
        (One(), 3, "data must be batches"),
        (One(), ["images/"], "paddle.Tensor or a NumPy array"),
        (One(), [(X, Y, Y)], r"write \(\(x1, x2\), y\)"),
        (One(), (X, Y[:3]), "as many samples"),
        (TwoInputs(), [X], r"takes 2 inputs \(left, right\), the batch has 1"),
        (TwoInputs(), [{"left": X, "write": X}], "takes left, right"),
    ],
)
def test_what_is_no_data(net, given, message):
    with pytest.raises(LowbitError, match=message):
        Batches(net, given)


def test_labels_that_are_no_classes():
    batch = next(iter(Batches(Net(), [(X, np.zeros((40, 4)))])))
    assert batch.labels is not None and batch.classes is None
