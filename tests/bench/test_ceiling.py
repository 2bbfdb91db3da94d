from __future__ import annotations

from lowbit.bench.layer_bench import ceilings
from lowbit.kernels import kernels


def test_every_side_has_a_ceiling_where_there_are_instructions_for_it():
    found = ceilings()
    portable = kernels() is None or kernels().variant == "baseline"
    assert set(found) == (set() if portable else {"oneDNN fp32", "W8A8G8", "W4A4G4", "W4A4G4 fast"})
    assert all(speed > 0 for speed in found.values())
