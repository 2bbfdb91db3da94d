from __future__ import annotations

from lowbit.bench.layer_bench import FP32, LayerCase, ceilings, layer_sides
from lowbit.kernels import kernels


def test_every_side_computes_a_layers_step():
    sides = layer_sides(LayerCase(8, 6), batch=2)
    assert list(sides) == [FP32, "W8A8G8", "W4A4G4", "W4A4G4 fast"]
    for step in sides.values():
        step()
        step()


def test_8_bits_take_no_more_multiplications_than_there_are_terms():
    """Fewer where the instruction set has nothing faster for bytes (tests/kernels/test_winograd.py)."""
    case = LayerCase(64, 56)
    terms = case.multiplications(16)
    assert case.multiplications(16, of_bytes=True) in (terms, terms * 16 // 36)


def test_every_side_has_a_ceiling_where_there_are_instructions_for_it():
    found = ceilings()
    portable = kernels() is None or kernels().variant == "baseline"
    assert set(found) == (set() if portable else {"oneDNN fp32", "W8A8G8", "W4A4G4", "W4A4G4 fast"})
    assert all(speed > 0 for speed in found.values())
