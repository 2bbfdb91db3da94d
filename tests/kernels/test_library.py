from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from lowbit.errors import LowbitError
from lowbit.kernels import kernels, library, why_missing
from lowbit.kernels.library import LARGE, advise_large_pages
from lowbit.kernels.quantization import Layout, Levels, quantize_kernels
from lowbit.machine.cpu import PROCESSORS, chosen_processor

needs_kernels = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
F32 = np.float32
INT4, UINT4 = Levels(-8, 7, True), Levels(0, 15, False)


@pytest.fixture(params=kernels().variants if kernels() else [])
def chosen(request):
    before = kernels().variant
    kernels().select_variant(request.param)
    yield quantize_kernels()
    kernels().select_variant(before)


def at(array: np.ndarray) -> int:
    return array.ctypes.data


@pytest.fixture
def fresh():
    """`library` as if it had not looked yet, before and after; the instruction set stays as it was."""
    found = kernels()
    variant = found.variant if found else None
    library._find.cache_clear()
    yield
    library._find.cache_clear()
    if found:
        found.select_variant(variant)


@needs_kernels
def test_the_best_variant_is_in_use_and_the_baseline_always_there():
    found = kernels()
    wanted = chosen_processor()
    assert found.variant == (wanted.variant if wanted else found.variants[0])
    assert found.variants[-1] == "baseline"
    with pytest.raises(ValueError, match=r"cannot run sse9; it can run .*baseline"):
        found.select_variant("sse9")
    assert found.variant == found.variants[0]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 15, 16, 17, 31, 33, 1023, 1024, 1025, 2051])
def test_nothing_is_written_beside_the_results(chosen, size):
    """Every size, also those that leave a rest behind the vectors; the frame around stays as it was."""
    rng = np.random.default_rng(size)
    x, dy = (rng.standard_normal(size).astype(F32) for _ in range(2))
    one, half = np.ones(1, F32), np.full(1, 0.5, F32)
    layout = Layout(1, 1, size)
    y, dx, summed = (np.full(n + 2, 77, F32) for n in (size, size, 1))
    chosen.quantize(at(x), at(y[1:]), at(half), at(one), layout, INT4)
    chosen.quantize_grad(at(x), at(dy), at(dx[1:]), at(half), at(one), at(summed[1:]), layout, INT4)
    assert {*y[[0, -1]], *dx[[0, -1]], *summed[[0, -1]]} == {77}
    np.testing.assert_array_equal(y[1:-1], np.rint(np.clip(x, -1, 1) / F32(0.5)) * F32(0.5))
    np.testing.assert_array_equal(dx[1:-1], np.where(np.abs(x) > 1, 0, dy))
    exact = np.where(np.abs(x) > 1, np.sign(x) * dy.astype(np.float64), 0).sum()
    assert summed[1] == F32(exact) or abs(summed[1] - exact) <= 1e-6 * np.abs(dy).sum()
    chosen.lsq_grad(at(x), at(dy), at(dx[1:]), at(half), at(summed[1:]), layout, Levels(-2, 1, True))
    v = x / F32(0.5)
    inside = (v > -2) & (v < 1)
    q = np.rint(np.clip(v, -2, 1))
    assert {*dx[[0, -1]], *summed[[0, -1]]} == {77}
    np.testing.assert_array_equal(dx[1:-1], np.where(inside, dy, 0))
    exact = (dy.astype(np.float64) * np.where(inside, q - v, q)).sum()
    assert abs(summed[1] - exact) <= 1e-6 * 2 * np.abs(dy).sum()


def test_integers_keep_zeros_signs_and_round_halves_to_even(chosen):
    x = F32([-0.0, 0.0, -0.2, 0.5, 1.5, 2.5, -2.5, 1e-45, 3e38, -3e38, np.nan])
    q, one = np.empty_like(x), np.ones(1, F32)
    for levels in (INT4, UINT4):
        chosen.quantize(at(x), at(q), at(one), None, Layout(1, 1, x.size), levels, integers=True)
        expected = np.rint(np.where(x < levels.lowest, levels.lowest, np.minimum(x, levels.highest)))
        np.testing.assert_array_equal(q, expected)
    assert np.signbit(q[0]) and not np.signbit(q[1])


def test_not_built(fresh, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none.so")
    assert library.kernels() is None and "not built" in library.why_missing()
    assert "pip install" in library.why_missing()


def test_no_library_of_ours(fresh, monkeypatch, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF but no more")
    monkeypatch.setattr(library, "LIBRARY", broken)
    assert library.kernels() is None and "broken.so does not load" in library.why_missing()
    library._find.cache_clear()
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: SimpleNamespace())
    assert library.kernels() is None and "does not load" in library.why_missing()


@needs_kernels
def test_built_from_other_sources(fresh, monkeypatch):
    monkeypatch.setattr(library, "fingerprint", lambda: "0" * 16)
    assert library.kernels() is None and "other sources" in library.why_missing()


@needs_kernels
@pytest.mark.parametrize("name", PROCESSORS)
def test_the_instruction_set_of_another_processor(fresh, monkeypatch, name):
    monkeypatch.setenv("LOWBIT_CPU", name)
    variant, here = PROCESSORS[name].variant, library.runnable_variants()
    if variant in here:
        assert library.kernels().variant == variant
        return
    for _ in range(2):  # asked again, it says so again
        with pytest.raises(LowbitError, match=f"LOWBIT_CPU={name} asks for kernels with {variant},"):
            library.kernels()
    assert library.runnable_variants() == here and library.why_missing() is None


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    calls: list[tuple[int, int, int]] = []
    monkeypatch.setattr(library, "_madvise", lambda: lambda *call: calls.append(call))
    return calls


def test_little_is_not_worth_it(advised):
    advise_large_pages(4096, LARGE - 1)
    assert not advised


@pytest.mark.parametrize(("offset", "rest"), [(0, 0), (64, 0), (0, 4), (4095, 1), (1, 4095)])
def test_the_advice_is_for_whole_pages_inside(advised, offset, rest):
    address, size = (1 << 32) + offset, (1 << 25) + rest
    advise_large_pages(address, size)
    ((start, length, what),) = advised
    assert start % 4096 == length % 4096 == 0 and what == 14
    assert address <= start < address + 4096
    assert address + size - 4096 < start + length <= address + size


@pytest.mark.skipif(sys.platform != "linux", reason="the advice is Linux's")
def test_memory_is_as_usable_afterwards():
    memory = (ctypes.c_char * (5 << 20))()
    memory[7] = b"x"
    advise_large_pages(ctypes.addressof(memory), len(memory))
    assert memory[7] == b"x" and memory[len(memory) - 1] == b"\0"
