"""The training process: its rank among several, its random numbers, and Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

import numpy as np
import paddle
import paddle.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """This process's place among the processes of `python -m paddle.distributed.launch`."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Only the first rank writes files and prints."""
        return self.rank == 0

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over all ranks, in fp64; on one process the values themselves."""
        if self.world == 1:
            return values
        total = paddle.to_tensor(np.asarray(values, np.float64))
        dist.all_reduce(total)
        return total.numpy()

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on any rank, so that all of them take the same branch."""
        return bool(self.sum(np.array([float(flag)]))[0] > 0)

    def copy_from_first(self, tensors: Iterable[paddle.Tensor]) -> None:
        """Gives the first rank's values to all."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Until all ranks are here."""
        self.any(False)


def join_ranks() -> Ranks:
    """Joins the processes that Paddle's launcher started, if it did.

    The launcher says how many there are in PADDLE_TRAINERS_NUM; without it this is a run of one process.
    """
    world = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    if world == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_parallel_env()
    return Ranks(rank=dist.get_rank(), world=dist.get_world_size())


def seed_everything(*key: int) -> None:
    """Seeds Paddle's, NumPy's and Python's generators from a key such as (seed, step, rank).

    Paddle's CPU generator cannot be saved and restored; seeding it again at each step makes its state a
    function of the step, which the checkpoint holds. Dropout is what draws from it.
    """
    first, second = np.random.SeedSequence(key).generate_state(2, np.uint64)
    paddle.seed(int(first >> np.uint64(1)))
    random.seed(int(second))
    np.random.seed(int(second & np.uint64(0xFFFFFFFF)))


class Interruption:
    """While it is open, the first SIGINT or SIGTERM only sets `asked`.

    >>> with Interruption() as interruption:
    ...     interruption.asked
    False
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
