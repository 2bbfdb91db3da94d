from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lowbit.kernels import kernels
from lowbit.runtime import Engine
from lowbit.runtime.reference import run_reference


@pytest.fixture
def agrees() -> Iterator[Callable[..., None]]:
    """Whether all instruction sets, numbers of threads and ways of planning give the reference's bits."""
    before = kernels().variant

    def check(path: Path, *inputs: np.ndarray, threads: tuple[int, ...] = (1, 2)) -> None:
        names = Engine(path).input_names
        expected = list(run_reference(path, dict(zip(names, inputs, strict=True))).values())
        for variant in kernels().variants:
            kernels().select_variant(variant)
            for merged, count in [(False, 1), *((True, count) for count in threads)]:
                found = Engine(path, threads=count, merged=merged).run_all(inputs)
                for one, wanted in zip(found, expected, strict=True):
                    assert one.dtype == wanted.dtype and one.shape == wanted.shape
                    where = f"{variant}, {count} threads, {'merged' if merged else 'unmerged'}"
                    np.testing.assert_array_equal(one, wanted, err_msg=where)

    yield check
    kernels().select_variant(before)
