"""What a block learns from: activations of all calibration images, and batches or windows of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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


_TOLERANCE = 1e-4  # of the largest target
_WORTH_IT = 1.25  # how much larger than a window an image must be
_LARGEST_MARGIN = 6


@dataclass(frozen=True)
class BlockData:
    """A block's inputs in the quantized and in the fp32 network, and its outputs in the fp32 network."""

    quantized: np.ndarray
    full: np.ndarray
    target: np.ndarray

    def split(self, unseen: int) -> tuple[BlockData, BlockData]:
        """Images to learn from and the last ones to measure on, at most an eighth; few are used for both."""
        count = min(unseen, len(self.target) // 8)
        if not count:
            return self, self
        arrays = self.quantized, self.full, self.target
        return BlockData(*(a[:-count] for a in arrays)), BlockData(*(a[-count:] for a in arrays))


@dataclass(frozen=True)
class ImageWindow:
    """The part of each image that an iteration trains on; `size` 0 is all of it.

    `stride` is input pixels per output pixel. `margin` is how many output pixels at an edge inside of the
    image differ, since the block sees padding there.
    """

    size: int = 0
    stride: int = 1
    margin: int = 0

    def batch(
        self, data: BlockData, size: int, drop: float, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and, with a window, which pixels of the targets count.

        Of the inputs a share `drop` is that of the fp32 network (QDrop).
        """
        count = len(data.target)
        chosen = rng.choice(count, min(size, count), replace=False)
        if not self.size:
            quantized, full, target = (a[chosen] for a in (data.quantized, data.full, data.target))
            return _mixed(quantized, full, drop, rng), paddle.to_tensor(target), None
        out, (height, width) = self.size // self.stride, data.target.shape[2:]
        x = np.empty((2, len(chosen), data.full.shape[1], self.size, self.size), np.float32)
        target = np.empty((len(chosen), data.target.shape[1], out, out), np.float32)
        mask = np.zeros((len(chosen), 1, out, out), np.float32)
        for place, image in enumerate(chosen):
            top, left = int(rng.integers(height - out + 1)), int(rng.integers(width - out + 1))
            x[0, place] = self._part(data.quantized[image], top, left)
            x[1, place] = self._part(data.full[image], top, left)
            target[place] = data.target[image, :, top : top + out, left : left + out]
            mask[place, :, self._inner(top, height), self._inner(left, width)] = 1
        return _mixed(x[0], x[1], drop, rng), paddle.to_tensor(target), paddle.to_tensor(mask)

    def _part(self, image: np.ndarray, top: int, left: int) -> np.ndarray:
        top, left = top * self.stride, left * self.stride
        return image[..., top : top + self.size, left : left + self.size]

    def _inner(self, first: int, length: int) -> slice:
        """The pixels that are right; at an edge of the image the padding is the image's own."""
        out = self.size // self.stride
        end = out if first + out == length else out - self.margin
        return slice(0 if first == 0 else self.margin, end)


def find_window(run: Callable[[Tensor], Tensor], data: BlockData, crop: int) -> ImageWindow:
    """The window for a block, proved on an image: `run`, the fp32 block, must give the same pixels for it.

    Blocks whose outputs depend on the whole image, such as those with squeeze-and-excitation, get none.
    """
    x, target = data.full[:1], data.target[:1]
    if not crop or x.ndim != 4 or target.ndim != 4 or min(x.shape[2:]) < crop * _WORTH_IT:
        return ImageWindow()
    stride = x.shape[2] // target.shape[2]
    if tuple(size * stride for size in target.shape[2:]) != x.shape[2:]:
        return ImageWindow()
    window = ImageWindow(size=crop // stride * stride, stride=stride)
    out = window.size // stride
    top, left = (target.shape[2] - out) // 2, (target.shape[3] - out) // 2
    got = run(paddle.to_tensor(np.ascontiguousarray(window._part(x, top, left)))).numpy()
    if got.shape[2:] != (out, out):
        return ImageWindow()
    wrong = np.abs(got - target[:, :, top : top + out, left : left + out])
    allowed = _TOLERANCE * float(np.abs(target).max())
    for margin in range(min(_LARGEST_MARGIN, out // 4) + 1):
        if wrong[:, :, margin : out - margin, margin : out - margin].max() <= allowed:
            return ImageWindow(size=window.size, stride=stride, margin=margin)
    return ImageWindow()


def _mixed(quantized: np.ndarray, full: np.ndarray, drop: float, rng: np.random.Generator) -> Tensor:
    if not drop:
        return paddle.to_tensor(quantized)
    kept = rng.random(quantized.shape, np.float32) < drop
    return paddle.to_tensor(np.where(kept, full, quantized))
