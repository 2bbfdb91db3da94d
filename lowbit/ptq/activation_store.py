"""Activations of all calibration images at one place of a network: in memory, or on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing
import paddle
from paddle import Tensor

BATCH = 32  # images that are run at a time


class ActivationStore:
    """Makes arrays of activations; together they take at most `memory` bytes, further ones are files.

    The files have no names, so that nothing stays behind when the process is killed.

    >>> store = ActivationStore(memory=1 << 20)
    >>> store.new([2, 3]).shape
    (2, 3)
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._held: dict[int, int] = {}  # bytes of the arrays in memory, by their identity

    def new(self, shape: Sequence[int], dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
        """An array whose values are yet to be written."""
        size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        if size and sum(self._held.values()) + size > self._memory:
            with tempfile.TemporaryFile(prefix="lowbit_activations_") as file:
                return np.memmap(file, dtype, "w+", shape=tuple(shape))
        array = np.empty(shape, dtype)
        self._held[id(array)] = size
        return array

    def kept(self, array: np.ndarray) -> np.ndarray:
        """A copy of an array."""
        copy = self.new(array.shape, array.dtype)
        copy[...] = array
        return copy

    def free(self, array: np.ndarray) -> None:
        """The array is not needed any more; its memory is that of the last reference."""
        self._held.pop(id(array), None)

    def mapped(self, function: Callable[[Tensor], Tensor], x: np.ndarray) -> np.ndarray:
        """What `function` makes of `x`, some images at a time."""
        starts = range(0, len(x), BATCH)
        return self.gathered((function(paddle.to_tensor(x[at : at + BATCH])) for at in starts), len(x))

    def gathered(self, batches: Iterable[Tensor], count: int) -> np.ndarray:
        """Batches as one array of `count` rows."""
        made: np.ndarray | None = None
        done = 0
        for batch in batches:
            if made is None:
                made = self.new([count, *batch.shape[1:]])
            made[done : done + batch.shape[0]] = batch.numpy()
            done += batch.shape[0]
        if made is None or done != count:
            raise ValueError(f"expected {count} rows, got {done}")
        return made
