from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lowbit.kernels.threads import runtime


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets their number, and sets it back."""
    before = runtime().omp_get_max_threads()
    yield runtime().omp_set_num_threads
    runtime().omp_set_num_threads(before)
