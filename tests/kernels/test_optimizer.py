"""Momentum and Adam in C++ against NumPy, in every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.optimizer import AdamUpdate, MomentumUpdate, optimizer_kernels

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
F32 = np.float32
ONE = F32(1)
SIZES = st.lists(st.sampled_from([0, 1, 3, 16, 17, 255, (1 << 14) - 1, 1 << 14, 40_000]), max_size=6)


def _states(sizes: list[int], kinds: int, seed: int) -> list[list[np.ndarray]]:
    random = np.random.default_rng(seed)
    return [[random.standard_normal(size).astype(F32) for _ in range(kinds)] for size in sizes]


def _in_every_variant(states, run) -> None:
    """`run(copies)`, with the same bits in every instruction set; the states become the results."""
    before, results = kernels().variant, []
    try:
        for name in kernels().variants:
            kernels().select_variant(name)
            results.append([[array.copy() for array in state] for state in states])
            run(results[-1])
    finally:
        kernels().select_variant(before)
    for others in zip(*results, strict=True):
        for arrays in zip(*others, strict=True):
            for array in arrays[1:]:
                np.testing.assert_array_equal(array.view("u1"), arrays[0].view("u1"))
    for state, result in zip(states, results[0], strict=True):
        state[:] = result


def _at(arrays) -> list[int]:
    return [array.ctypes.data for array in arrays]


@settings(max_examples=30)
@given(sizes=SIZES, has_decay=st.booleans(), is_nesterov=st.booleans(), seed=st.integers(0, 99))
def test_momentum(sizes, has_decay, is_nesterov, seed):
    states, rate = _states(sizes, 3, seed), np.array([0.1], F32)
    momentum, decay = F32(0.9), F32(0.01)
    expected = []
    for w, dw, velocity in states:
        g = w * decay + dw if has_decay else dw
        v = velocity * momentum + g
        expected.append((w - (g + v * momentum) * rate if is_nesterov else w - rate * v, dw, v))

    def run(copies) -> None:
        settings = (momentum, decay, has_decay, is_nesterov)
        updates = [MomentumUpdate(*_at([*copy, rate]), len(copy[0]), *settings) for copy in copies]
        optimizer_kernels().momentum_step(updates)

    _in_every_variant(states, run)
    for state, wanted in zip(states, expected, strict=True):
        for found, array in zip(state, wanted, strict=True):
            np.testing.assert_array_equal(found, array)


def _multiply_add(a, b, c, *, is_fused: bool):
    """a * b + c, rounded once or twice."""
    if not is_fused:
        return a * b + c
    return (np.longdouble(a) * np.longdouble(b) + np.longdouble(c)).astype(F32)


@settings(max_examples=30)
@given(sizes=SIZES, has_decay=st.booleans(), is_fused=st.booleans(), seed=st.integers(0, 99))
def test_adam(sizes, has_decay, is_fused, seed):
    states, rate = _states(sizes, 4, seed), np.array([0.1], F32)
    for state in states:
        state[3] **= 2
        state += [np.array([0.729], F32), np.array([0.997], F32)]
    beta1, beta2, epsilon, decay = F32(0.9), F32(0.999), F32(1e-8), F32(0.01)
    expected = []
    for w, dw, moment1, moment2, power1, power2 in states:
        correction = np.sqrt(ONE - power2)
        if has_decay:
            w = _multiply_add(-(rate * decay), w, w, is_fused=is_fused)
        first = _multiply_add(beta1, moment1, (ONE - beta1) * dw, is_fused=is_fused)
        square = (ONE - beta2) * (dw * dw) if is_fused else (ONE - beta2) * dw * dw
        second = _multiply_add(beta2, moment2, square, is_fused=is_fused)
        quotient = first / (np.sqrt(second) + epsilon * correction)
        w = _multiply_add(quotient, -(rate * (correction / (ONE - power1))), w, is_fused=is_fused)
        expected.append((w, dw, first, second, power1 * beta1, power2 * beta2))

    def run(copies) -> None:
        settings = (beta1, beta2, epsilon, decay, has_decay, is_fused)
        updates = [AdamUpdate(*_at([*copy, rate]), len(copy[0]), *settings) for copy in copies]
        optimizer_kernels().adam_step(updates)

    _in_every_variant(states, run)
    for state, wanted in zip(states, expected, strict=True):
        for found, array in zip(state, wanted, strict=True):
            np.testing.assert_array_equal(found, array)
