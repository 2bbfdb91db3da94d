"""Which images make up which batch of which epoch on which process: a pure function of the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowbit.errors import LowbitError

# The streams of one seed must not overlap: orders and augmentations count in different high words.
_ORDER, _SAMPLE = 1, 2
_WORD = (1 << 64) - 1


def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch's images; depends on nothing but its arguments."""
    return _generator(seed, epoch, _ORDER, 0).permutation(length)


def sample_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The randomness of one image in one epoch: the same whichever thread or process asks."""
    return _generator(seed, epoch, _SAMPLE, index)


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
        return epoch_order(self.length, self.seed, epoch) if self.shuffle else np.arange(self.length)

    def share(self, epoch: int, batch: int, order: np.ndarray | None = None) -> Share:
        """This process's images of a global batch; pass `order(epoch)` to save computing it again.

        An incomplete batch is spread as evenly as it goes. A process for which nothing is left gets one image
        with weight 0, because all processes must take part in the step.
        """
        order = self.order(epoch) if order is None else order
        whole = order[batch * self.global_batch : (batch + 1) * self.global_batch]
        indices = np.array_split(whole, self.world)[self.rank]
        if len(indices) == 0:
            return Share(whole[:1], 0.0)
        return Share(indices, len(indices) * self.world / len(whole))
