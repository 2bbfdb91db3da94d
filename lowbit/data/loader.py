"""Batches of transformed images, prepared ahead by threads, the same for any number of threads.

Threads, not processes: decoding, resizing and normalising release Python's lock, results need not be
copied between processes, and starting costs nothing (benchmarks/input_pipeline.py has the figures).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from lowbit.data.dataset import BadImageError, Dataset
from lowbit.data.mixing import Mixer
from lowbit.data.sampler import MultiScaleSampler, Sampler, Share, batch_generator, sample_generator
from lowbit.data.transforms import Transform
from lowbit.errors import LowbitError

_log = logging.getLogger(__name__)
_AHEAD = 2  # batches in preparation while one is used; more costs memory and gains nothing
_CHUNKS_PER_WORKER = 4  # small enough that no thread waits long for another at the end of a batch


@dataclass
class Batch:
    """What a loader gives for a step: images, their labels, and the process's share in the batch."""

    images: np.ndarray  # float32 NCHW
    labels: np.ndarray  # int64
    weight: float  # local_n * world / global_n; 0.0 for a process without images in this batch
    parts: int = 1  # pieces whose gradients are added up for one update
    other_labels: np.ndarray | None = None  # of the images that these were mixed with
    shares: np.ndarray | None = None  # float32, how much of each mixed image is its own

    def split(self) -> Iterator[Batch]:
        """The pieces, each with its part of the weight."""
        if self.parts == 1:
            yield self
            return
        for piece in np.array_split(np.arange(len(self.labels)), self.parts):
            yield Batch(
                self.images[piece[0] : piece[-1] + 1],
                self.labels[piece],
                self.weight * len(piece) / len(self.labels),
                other_labels=None if self.other_labels is None else self.other_labels[piece],
                shares=None if self.shares is None else self.shares[piece],
            )


@dataclass
class _Pending:
    """A batch whose images are being written by the threads; `rng` mixes them when all are there."""

    batch: Batch
    rng: np.random.Generator
    chunks: list[Future[list[BadImageError]]] = field(default_factory=list)

    def cancel(self) -> None:
        for chunk in self.chunks:
            chunk.cancel()


class Loader:
    """Iterates over a data set epoch by epoch.

    In training a bad image is named in the log, counted, and replaced by the next good one of the data set,
    until there are more than `max_bad_images` different ones; in evaluation the first is an error.

    >>> for batch in Loader(dataset, transform, batch_size=64, shuffle=True, drop_last=True, workers=2,
    ...                     seed=0, training=True).epoch(0):  # doctest: +SKIP
    ...     step(batch.images, batch.labels)
    """

    def __init__(
        self,
        dataset: Dataset,
        transform: Transform,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        workers: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        training: bool,
        max_bad_images: int = 100,
        parts: int = 1,
        repeats: int = 1,
        scales: Sequence[tuple[int, int]] = (),
        mixer: Mixer | None = None,
    ) -> None:
        if workers < 0:
            raise LowbitError(f"{workers} data workers: give 0 or more (0 and 1 both mean one thread)")
        self.dataset = dataset
        kind = partial(MultiScaleSampler, scales=tuple(scales)) if scales else Sampler
        self.sampler = kind(
            length=len(dataset),
            batch_size=batch_size * parts,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            rank=rank,
            world=world,
            repeats=repeats,
        )
        self.bad_images: list[str] = []
        self._transforms: dict[tuple[int, int] | None, Transform] = {None: transform}
        self._transforms |= {size: transform.at_size(size) for size in scales}
        self._workers = max(workers, 1)
        self._training = training
        self._max_bad_images = max_bad_images
        self._parts, self._part_size, self._mixer = parts, batch_size, mixer
        self._shapes: dict[tuple[int, int] | None, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.sampler)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on; leaving the loop early stops the threads."""
        if not 0 <= start <= len(self):
            raise LowbitError(f"cannot start at batch {start} of an epoch of {len(self)} batches")
        return self._iterate(epoch, start)

    def image_shape(self, size: tuple[int, int] | None = None) -> tuple[int, ...]:
        """The shape that the transform gives, found by trying it on the first image that can be read."""
        if size not in self._shapes:
            transform = self._transforms[size]
            image, index = self._good_image(0, [], transform)
            try:
                self._shapes[size] = transform(image, sample_generator(0, 0, index)).shape
            except LowbitError as error:
                raise LowbitError(f"{self.dataset.name(index)}: {error}") from error
        return self._shapes[size]

    def _iterate(self, epoch: int, start: int) -> Iterator[Batch]:
        order = self.sampler.order(epoch)
        waiting: deque[_Pending] = deque()
        with ThreadPoolExecutor(self._workers, thread_name_prefix="lowbit-data") as pool:
            try:
                for number in range(start, len(self)):
                    rng = batch_generator(self.sampler.seed, epoch, number, self.sampler.rank)
                    share = self.sampler.share(epoch, number, order)
                    waiting.append(self._submit(pool, epoch, share, rng))
                    if len(waiting) > _AHEAD:
                        yield self._finish(waiting.popleft())
                while waiting:
                    yield self._finish(waiting.popleft())
            finally:  # also when the caller leaves its loop: the pool waits only for images already begun
                for pending in waiting:
                    pending.cancel()

    def _submit(
        self, pool: ThreadPoolExecutor, epoch: int, share: Share, rng: np.random.Generator
    ) -> _Pending:
        count = len(share.indices)
        # As many pieces on every process: each waits for the others after every backward pass.
        parts = min(self._parts, math.ceil(share.smallest / self._part_size))
        batch = Batch(
            np.empty((count, *self.image_shape(share.size)), np.float32),
            np.empty(count, np.int64),
            float(share.weight),
            parts,
        )
        pending = _Pending(batch, rng)
        size = max(1, math.ceil(count / (self._workers * _CHUNKS_PER_WORKER)))
        for first in range(0, count, size):
            slots = range(first, min(first + size, count))
            pending.chunks.append(pool.submit(self._fill, batch, slots, share, epoch))
        return pending

    def _finish(self, pending: _Pending) -> Batch:
        """Wait for a batch. Bad images are counted here, in the order of the batches, not of the threads."""
        try:
            for chunk in pending.chunks:
                for error in chunk.result():
                    self._count(error)
        except BaseException:
            pending.cancel()
            raise
        self._mix(pending.batch, pending.rng)
        return pending.batch

    def _mix(self, batch: Batch, rng: np.random.Generator) -> None:
        """Mixes the images of each piece of a batch among themselves."""
        if self._mixer is None:
            return
        batch.other_labels, batch.shares = batch.labels.copy(), np.ones(len(batch.labels), np.float32)
        for piece in np.array_split(np.arange(len(batch.labels)), batch.parts):
            mixed = self._mixer(batch.images[piece[0] : piece[-1] + 1], rng)
            if mixed is not None:
                partners, share = mixed
                batch.other_labels[piece] = batch.labels[piece][partners]
                batch.shares[piece] = share

    def _fill(self, batch: Batch, slots: range, share: Share, epoch: int) -> list[BadImageError]:
        bad: list[BadImageError] = []
        transform = self._transforms[share.size]
        for slot in slots:
            generator = sample_generator(self.sampler.seed, epoch, int(share.keys[slot]))
            image, found = self._good_image(int(share.indices[slot]), bad, transform)
            self._apply(transform, image, found, generator, batch.images[slot])
            batch.labels[slot] = self.dataset.label(found)
        return bad

    def _good_image(
        self, index: int, bad: list[BadImageError], transform: Transform
    ) -> tuple[np.ndarray, int]:
        """The image at `index`, or in training the next good one; `bad` collects those on the way."""
        for _ in range(min(len(self.dataset), self._max_bad_images + 1)):
            try:
                return self.dataset.image(index, transform.at_least), index
            except BadImageError as error:
                if not self._training:
                    raise
                bad.append(error)
                index = (index + 1) % len(self.dataset)
        raise LowbitError(f"{len(bad)} bad images in a row; the first: {bad[0]}")

    def _apply(
        self,
        transform: Transform,
        image: np.ndarray,
        index: int,
        generator: np.random.Generator,
        out: np.ndarray,
    ) -> None:
        try:
            transform(image, generator, out)
        except LowbitError as error:
            raise LowbitError(f"{self.dataset.name(index)}: {error}") from error

    def _count(self, error: BadImageError) -> None:
        if error.name in self.bad_images:
            return
        self.bad_images.append(error.name)
        _log.warning("bad image %d, skipped: %s: %s", len(self.bad_images), error.name, error.reason)
        if len(self.bad_images) > self._max_bad_images:
            raise LowbitError(
                f"more than {self._max_bad_images} bad images, the last: {error}. "
                "Repair the data set, or raise the limit (max_bad_images)"
            )
