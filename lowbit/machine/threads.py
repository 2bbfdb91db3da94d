"""The threads of Paddle's matrix library, kept as they were around code that changes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def math_threads() -> int:
    """Threads that training computes with: OMP_NUM_THREADS, which Paddle's import sets to 1 if unset."""
    import paddle  # noqa: F401  (for what its import does to the environment)

    return int(os.environ["OMP_NUM_THREADS"])


def set_math_threads(threads: int) -> None:
    """From now on compute with so many, in Paddle's libraries and in lowbit's kernels, which share a pool."""
    from paddle.base import core

    os.environ["OMP_NUM_THREADS"] = str(threads)
    core.set_num_threads(threads)


@contextmanager
def math_threads_kept() -> Iterator[None]:
    """Undo what Paddle Inference does: every run of a predictor leaves the whole process with 1 thread.

    Without this, training that goes on after an export in the same process would be slower and would differ
    in the last bits from one without the export.
    """
    from paddle.base import core

    threads = math_threads()
    try:
        yield
    finally:
        core.set_num_threads(threads)
