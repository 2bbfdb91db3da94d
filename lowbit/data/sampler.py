"""Which images make up which batch of which epoch on which process: a pure function of the seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lowbit.errors import LowbitError

# The streams of one seed must not overlap: orders and augmentations count in different high words.
_ORDER, _SAMPLE, _BATCH, _SCALES = 1, 2, 3, 4
_WORD = (1 << 64) - 1


def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch's images; depends on nothing but its arguments."""
    return _generator(seed, epoch, _ORDER, 0).permutation(length)


def sample_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The randomness of one image in one epoch: the same whichever thread or process asks."""
    return _generator(seed, epoch, _SAMPLE, index)


def batch_generator(seed: int, epoch: int, batch: int, rank: int) -> np.random.Generator:
    """The randomness of one process's part of one batch, which mixes its images."""
    return _generator(seed, epoch, _BATCH, batch << 20 | rank)


def _generator(seed: int, epoch: int, stream: int, index: int) -> np.random.Generator:
    # Explicit uint64: numpy would read large numbers of a list as floats, and confuse neighbours.
    key = np.array([seed & _WORD, epoch & _WORD], np.uint64)
    # The generator counts up in the lowest word, so the others are free to tell streams apart.
    counter = np.array([0, 0, index, stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@dataclass(frozen=True)
class Share:
    """One process's part of a global batch."""

    indices: np.ndarray
    weight: float  # makes the mean over processes of weighted local means the mean over the global batch
    keys: np.ndarray  # of each image's randomness; its index, unless an image comes several times
    smallest: int = 1  # images that every process has at least
    size: tuple[int, int] | None = None  # width and height, where they differ between batches


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Cuts every epoch into global batches, and those into one share per process.

    Batch k is the same set of images for any `world` with the same `batch_size * world`, so a run on two
    processes with batch 64 sees what one process with batch 128 sees.

    >>> Sampler(length=10, batch_size=2, world=2, shuffle=False).share(0, 0).indices
    array([0, 1])
    """

    length: int
    batch_size: int  # per process
    shuffle: bool
    drop_last: bool = False
    seed: int = 0
    rank: int = 0
    world: int = 1
    repeats: int = 1  # each image so often in a row; an epoch has as many batches as without

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise LowbitError(f"batch size {self.batch_size}: give at least 1")
        if not 0 <= self.rank < self.world:
            raise LowbitError(f"rank {self.rank} is outside 0..{self.world - 1}")
        if self.drop_last and self.length < self.global_batch:
            raise LowbitError(
                f"a batch of {self.global_batch} is larger than the data set ({self.length} images), and "
                "drop_last leaves out incomplete batches, so there is nothing to train on; "
                "use a smaller batch or drop_last: False"
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Batches per epoch, the same on every process."""
        whole, rest = divmod(self.length, self.global_batch)
        return whole if self.drop_last or not rest else whole + 1

    def order(self, epoch: int) -> np.ndarray:
        """The keys of an epoch's images in their order; a key modulo `length` is an image's index."""
        order = epoch_order(self.length, self.seed, epoch) if self.shuffle else np.arange(self.length)
        if self.repeats == 1:
            return order
        repeated = order[:, None] + self.length * np.arange(self.repeats)
        return repeated.ravel()[: self.length]

    def share(self, epoch: int, batch: int, order: np.ndarray | None = None) -> Share:
        """This process's images of a global batch; pass `order(epoch)` to save computing it again.

        An incomplete batch is spread as evenly as it goes. A process for which nothing is left gets one image
        with weight 0, because all processes must take part in the step.
        """
        order = self.order(epoch) if order is None else order
        return self._share_of(order[batch * self.global_batch : (batch + 1) * self.global_batch])

    def _share_of(self, whole: np.ndarray, size: tuple[int, int] | None = None) -> Share:
        keys = np.array_split(whole, self.world)[self.rank]
        weight = len(keys) * self.world / len(whole)
        keys = keys if len(keys) else whole[:1]
        return Share(keys % self.length, weight, keys, max(1, len(whole) // self.world), size)


@dataclass(frozen=True, kw_only=True)
class MultiScaleSampler(Sampler):
    """Batches of images of several sizes, each with about as many pixels as `batch_size` of the first size.

    Which batch has which size is drawn once for a run, so that every epoch has as many batches.

    >>> sampler = MultiScaleSampler(length=99, batch_size=4, shuffle=True, scales=((64, 64), (32, 32)))
    >>> sorted({sampler.share(0, batch).size for batch in range(len(sampler))})
    [(32, 32), (64, 64)]
    """

    scales: tuple[tuple[int, int], ...]  # width and height

    @cached_property
    def _bounds(self) -> list[tuple[int, tuple[int, int]]]:
        """Where each batch ends, and its size."""
        rng = _generator(self.seed, 0, _SCALES, 0)
        pixels = self.scales[0][0] * self.scales[0][1] * self.batch_size
        bounds: list[tuple[int, tuple[int, int]]] = []
        end = 0
        while end < self.length:
            width, height = self.scales[int(rng.integers(len(self.scales)))]
            end += max(1, pixels // (width * height)) * self.world
            if end > self.length and self.drop_last and bounds:
                break
            bounds.append((min(end, self.length), (width, height)))
        return bounds

    def __len__(self) -> int:
        return len(self._bounds)

    def share(self, epoch: int, batch: int, order: np.ndarray | None = None) -> Share:
        order = self.order(epoch) if order is None else order
        start = self._bounds[batch - 1][0] if batch else 0
        end, size = self._bounds[batch]
        return self._share_of(order[start:end], size)
