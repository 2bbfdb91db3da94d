from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lowbit.kernels.library import openmp_runtime


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets their number, and sets it back."""
    before = openmp_runtime().omp_get_max_threads()
    yield openmp_runtime().omp_set_num_threads
    openmp_runtime().omp_set_num_threads(before)
