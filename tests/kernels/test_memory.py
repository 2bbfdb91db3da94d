"""Kernels that run out of memory raise an exception; scratch memory shrinks after a large layer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lowbit.errors import LowbitError
from lowbit.kernels import gemm, kernels, library, why_missing
from lowbit.kernels.gemm import Geometry, Operand
from lowbit.kernels.norm import Pool, norm_kernels

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


def pointwise(channels: int, outputs: int) -> Geometry:
    return Geometry(
        input=(1, channels, 1, 1),
        outputs=outputs,
        kernel=(1, 1),
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
        groups=1,
    )


def test_a_product_that_does_not_fit_into_memory():
    """Packed weights of 2**60 bytes; no operand is read before."""
    nothing = Operand(integers=0, lowest=-8, highest=7)
    with pytest.raises(MemoryError, match="lowbit_forward ran out of memory"):
        gemm.forward(pointwise(1 << 30, 1 << 30), nothing, nothing, 0)


@pytest.mark.parametrize("planes", [1, 4])
def test_memory_that_runs_out_on_any_thread(planes):
    pool = Pool(planes, 1 << 29, 1 << 29, 1 << 29, 1 << 29, 3, 3, 1, 1, 1, 1)
    with pytest.raises(MemoryError, match="lowbit_max_pool_forward"):
        norm_kernels().max_pool_forward(0, 0, 0, pool)


def test_other_failures_name_the_function():
    function = kernels().library.lowbit_relu_forward
    with pytest.raises(LowbitError, match="lowbit_relu_forward failed with status -2"):
        library._check_status(-2, function, ())


# In a process of its own: the buffers of this one may be large from other tests.
_SHRINK = """
import sys
from lowbit.kernels import kernels, library
if len(sys.argv) > 1:
    from pathlib import Path
    library.LIBRARY = Path(sys.argv[1])
from tests.support.gemm_cases import grad_weight, square
grad_weight(square(64, 64, 64, batch=16))
large = kernels().scratch_bytes
for _ in range(100):
    grad_weight(square(64, 64, 64, batch=16))
assert kernels().scratch_bytes == large, "buffers that are used keep their size"
small = square(16, 16, 8, batch=1)
for _ in range(2100):
    grad_weight(small)
print(large, kernels().scratch_bytes)
"""


def test_scratch_shrinks_when_layers_are_small_again():
    command = [sys.executable, "-c", _SHRINK, str(library.LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    large, small = map(int, done.stdout.split())
    assert large > 8 << 20 and small < large // 3
