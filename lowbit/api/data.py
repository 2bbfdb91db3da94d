"""Any iterable of batches as a network's inputs and labels.

A batch is
- a tensor or an array: the network's only input;
- `(x, y)`: as many inputs as `forward` requires, then the labels;
- `((x1, x2), y)`: all inputs, optional ones included, then the labels;
- a dict: inputs by the names of `forward`'s parameters, labels as `label`, `labels`, `target` or `y`.

Data are an iterable of batches (a list, a generator, a `paddle.io.DataLoader`), or arrays that are cut into
batches: one array, a tuple of arrays `(images, labels)`, or a dict of arrays.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.data.loader import Batch as ImageBatch
from lowbit.data.loader import Loader
from lowbit.errors import LowbitError

Array: TypeAlias = Tensor | np.ndarray[Any, Any]
Data: TypeAlias = Iterable[Any] | Mapping[str, Array] | Array | Loader
StrPath: TypeAlias = str | os.PathLike[str]
Example: TypeAlias = Array | Sequence[Any] | Mapping[str, Array]

_BATCH = 32  # samples at a time, where arrays are cut into batches
_LABELS = ("label", "labels", "target", "targets", "y")


@dataclass(frozen=True)
class TensorBatch:
    """The inputs of one call of a network, in the order of its `forward`, and the labels if there are any."""

    inputs: tuple[Tensor, ...]
    labels: np.ndarray[Any, Any] | None = None

    @property
    def size(self) -> int:
        """How many samples it holds."""
        return int(self.inputs[0].shape[0]) if self.inputs[0].ndim else 1

    @property
    def classes(self) -> np.ndarray[Any, Any] | None:
        """The labels if they are one class index per sample, [N] or [N, 1]; else None."""
        if self.labels is None or not np.issubdtype(self.labels.dtype, np.integer):
            return None
        if self.labels.ndim == 2 and self.labels.shape[1] == 1:
            return self.labels[:, 0].astype(np.int64)
        return self.labels.astype(np.int64) if self.labels.ndim == 1 else None


class Batches:
    """The batches of `data` for a network; iterate as often as needed.

    The batches of an iterator are kept in memory. `limit` is the largest number of batches.

    >>> net = paddle.nn.Linear(4, 2)
    >>> data = Batches(net, (np.zeros([50, 4], "float32"), np.zeros([50], "int64")))
    >>> [batch.size for batch in data]
    [32, 18]
    """

    def __init__(self, net: nn.Layer, data: Data, *, limit: int | None = None) -> None:
        self._forward, self._limit = _Forward(net), limit
        self._items: Iterable[Any] = _items(data)
        if iter(self._items) is self._items:
            self._items = list(islice(self._items, limit))
        self.first = next(iter(self), None)
        if self.first is None:
            raise LowbitError("the data have no batches: give at least one")

    def __iter__(self) -> Iterator[TensorBatch]:
        for item in islice(iter(self._items), self._limit):
            yield self._forward.batch(item)

    def inputs(self) -> Iterator[tuple[Tensor, ...]]:
        """The inputs of batch after batch."""
        return (batch.inputs for batch in self)


def example_inputs(net: nn.Layer, example: Example) -> tuple[Tensor, ...]:
    """The inputs of an example: one batch, whose labels, if it has any, are left out.

    >>> [list(x.shape) for x in example_inputs(paddle.nn.Linear(4, 2), np.zeros([1, 4]))]
    [[1, 4]]
    """
    return _Forward(net).batch(example).inputs


def input_names(net: nn.Layer, count: int) -> tuple[str, ...]:
    """Names for the first inputs of a network: those of `forward`'s parameters.

    >>> input_names(paddle.nn.Bilinear(2, 2, 2), 2)
    ('x1', 'x2')
    """
    names = _Forward(net).names[:count]
    return tuple(names) + tuple(f"input{number}" for number in range(len(names), count))


class _Forward:
    """What a network is called with, by the signature of its `forward`."""

    def __init__(self, net: nn.Layer) -> None:
        net = net._layers if isinstance(net, paddle.DataParallel) else net
        self._kind = type(net).__name__
        try:
            parameters = list(inspect.signature(net.forward).parameters.values())
        except (TypeError, ValueError):  # a callable without a signature
            parameters = []
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = [one for one in parameters if one.kind in positional]
        self.names = [one.name for one in parameters]
        required = [one for one in parameters if one.default is inspect.Parameter.empty]
        self._required = max(1, len(required))

    def batch(self, item: Any) -> TensorBatch:
        if isinstance(item, ImageBatch):
            return TensorBatch((_tensor(item.images),), item.labels)
        if isinstance(item, Mapping):
            return self._by_name(item)
        if not isinstance(item, list | tuple):
            return TensorBatch(self._checked((item,)))
        if item and isinstance(item[0], list | tuple | Mapping):
            inputs, rest = self._nested(item[0]), item[1:]
        else:
            inputs, rest = tuple(item[: self._required]), item[self._required :]
        if len(rest) > 1:
            raise LowbitError(
                f"a batch has {len(item)} parts, but {self._kind}.forward requires {self._required} inputs, "
                "and there is one set of labels: write ((x1, x2), y) to say which are inputs"
            )
        return TensorBatch(self._checked(inputs), _labels(rest[0]) if rest else None)

    def _nested(self, inputs: Any) -> tuple[Any, ...]:
        return self._ordered(inputs) if isinstance(inputs, Mapping) else tuple(inputs)

    def _by_name(self, item: Mapping[str, Any]) -> TensorBatch:
        found = [key for key in item if key in _LABELS and key not in self.names]
        inputs = {key: value for key, value in item.items() if key not in found}
        return TensorBatch(self._checked(self._ordered(inputs)), _labels(item[found[0]]) if found else None)

    def _ordered(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Inputs by name in the order of the parameters; a single one may have any name."""
        if len(inputs) == 1 and self._required == 1 and not set(inputs) & set(self.names):
            return tuple(inputs.values())
        names = self.names[: len(inputs)]
        if set(names) != set(inputs):
            raise LowbitError(
                f"a batch has the inputs {', '.join(inputs)}, but {self._kind}.forward takes "
                f"{', '.join(self.names)}: name the first {len(inputs)} of them"
            )
        return tuple(inputs[name] for name in names)

    def _checked(self, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
        if len(inputs) < self._required:
            raise LowbitError(
                f"{self._kind}.forward takes {self._required} inputs ({', '.join(self.names)}), the batch "
                f"has {len(inputs)}"
            )
        return tuple(_tensor(one) for one in inputs)


def _items(data: Data) -> Iterable[Any]:
    """The batches as they come."""
    if isinstance(data, Loader):
        return _Epoch(data)
    if isinstance(data, Tensor | np.ndarray):
        return _cut([data], lambda parts: parts[0])
    if isinstance(data, Mapping):
        keys = list(data)
        return _cut(list(data.values()), lambda parts: dict(zip(keys, parts, strict=True)))
    if isinstance(data, tuple) and data and all(isinstance(one, Tensor | np.ndarray) for one in data):
        return _cut(list(data), tuple)
    if isinstance(data, paddle.io.Dataset) and not isinstance(data, paddle.io.IterableDataset):
        raise LowbitError("a Dataset gives single samples: give paddle.io.DataLoader(dataset, batch_size=32)")
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise LowbitError(
            f"data must be batches: a list, a paddle.io.DataLoader, arrays (images, labels); got "
            f"{type(data).__name__}"
        )
    return data


class _Epoch:
    """A loader of lowbit's own, read from its beginning each time."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[ImageBatch]:
        return self._loader.epoch(0)


def _cut(arrays: list[Any], together: Any) -> list[Any]:
    """Arrays as batches: the first axis in pieces."""
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise LowbitError(f"the arrays must have as many samples each; they have {sorted(lengths)}")
    starts = range(0, lengths.pop(), _BATCH)
    return [together([array[start : start + _BATCH] for array in arrays]) for start in starts]


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise LowbitError(
            f"a network's input must be a paddle.Tensor or a NumPy array, got {type(value).__name__}; a "
            "batch is a tensor, (x, y), ((x1, x2), y) or a dict"
        )
    if value.dtype == np.float64:  # NumPy's default, which no network of Paddle's takes
        value = value.astype(paddle.get_default_dtype())
    return paddle.to_tensor(value)


def _labels(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value.numpy() if isinstance(value, Tensor) else value)
