"""Dynamic batching: requests that wait at the same time are computed as one batch.

While an engine computes, requests collect; it then takes as many as fit into a batch. An idle engine waits up
to `max_delay` seconds for a batch to fill. Each engine has a thread of its own, since most are for one thread
at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = list[np.ndarray[Any, Any]]
Run = Callable[[Sequence[np.ndarray[Any, Any]]], Arrays]


@dataclass(frozen=True)
class BatchTimes:
    """What one batch took."""

    samples: int
    requests: int
    queued: tuple[float, ...]  # seconds that each request waited
    seconds: float  # of the engine


@dataclass(eq=False)  # each is itself: arrays have no truth value
class _Waiting:
    inputs: Arrays
    future: asyncio.Future[Arrays]
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def samples(self) -> int:
        return len(self.inputs[0])


class Batcher:
    """Passes requests on to engines, in batches of at most `max_batch` samples.

    batcher = Batcher([engine.run_all], max_batch=8)
    batcher.start()
    answers = await batcher.submit([images])
    await batcher.close()              # what waits is still answered
    """

    def __init__(
        self,
        engines: Sequence[Run],
        *,
        max_batch: int,
        max_delay: float = 0.0,
        join: bool = True,
        on_batch: Callable[[BatchTimes], None] = lambda _: None,
    ) -> None:
        self._engines = list(engines)
        self._max_batch, self._max_delay, self._join = max_batch, max_delay, join
        self._on_batch = on_batch
        self._waiting: deque[_Waiting] = deque()
        self._changed = asyncio.Event()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """One task per engine, in the running event loop."""
        self._tasks = [asyncio.create_task(self._serve(run)) for run in self._engines]

    async def submit(self, inputs: Arrays) -> Arrays:
        """The answers to one request; cancelling it takes it out of the queue."""
        waiting = _Waiting(inputs, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._changed.set()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            with suppress(ValueError):  # an engine has taken it meanwhile
                self._waiting.remove(waiting)
            raise

    async def close(self) -> None:
        """Answer what waits, then end."""
        self._closing = True
        self._changed.set()
        await asyncio.gather(*self._tasks)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    async def _serve(self, run: Run) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
            while (group := await self._next_group()) is not None:
                taken = time.perf_counter()
                results = await loop.run_in_executor(thread, _run_group, run, [one.inputs for one in group])
                for one, result in zip(group, results, strict=True):
                    if one.future.done():  # given up meanwhile
                        continue
                    if isinstance(result, Exception):
                        one.future.set_exception(result)
                    else:
                        one.future.set_result(result)
                queued = tuple(taken - one.arrived for one in group)
                samples = sum(one.samples for one in group)
                self._on_batch(BatchTimes(samples, len(group), queued, time.perf_counter() - taken))

    async def _next_group(self) -> list[_Waiting] | None:
        """The requests of the next batch; None once the batcher is closed and all are answered."""
        while True:
            while self._waiting and self._waiting[0].future.done():
                self._waiting.popleft()
            left: float | None = None
            if self._waiting:
                left = self._waiting[0].arrived + self._max_delay - time.perf_counter()
                if left <= 0 or self._closing or self._batch_is_full():
                    return self._take()
            elif self._closing:
                return None
            self._changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _batch_is_full(self) -> bool:
        return not self._join or sum(one.samples for one in self._waiting) >= self._max_batch

    def _take(self) -> list[_Waiting]:
        """From the front of the queue, as many as fit; one that was given up is left out."""
        group: list[_Waiting] = []
        samples = 0
        while self._waiting and samples + self._waiting[0].samples <= self._max_batch:
            one = self._waiting.popleft()
            if not one.future.done():
                group.append(one)
                samples += one.samples
            if group and not self._join:
                break
        return group


def _run_group(run: Run, requests: list[Arrays]) -> list[Arrays | Exception]:
    """The answers of each request, computed together; if that fails, each alone: one harms no other."""
    try:
        return list(_run_together(run, requests))
    except Exception as error:
        if len(requests) == 1:
            return [error]
    return [_run_group(run, [one])[0] for one in requests]


def _run_together(run: Run, requests: list[Arrays]) -> list[Arrays]:
    if len(requests) == 1:
        # Bytes of a request may begin anywhere; engines read whole words.
        return [run([np.require(one, requirements=["C", "A"]) for one in requests[0]])]
    answers = run([np.concatenate(arrays) for arrays in zip(*requests, strict=True)])
    ends = np.cumsum([len(one[0]) for one in requests])[:-1]
    return [list(parts) for parts in zip(*(np.split(answer, ends) for answer in answers), strict=True)]
