"""Random numbers that are a function of where they are used: seed, step, layer and element.

Nothing is carried from one number to the next, so they do not depend on threads, on how a tensor is split,
or on a restart. The algorithm is made of 32-bit integer operations, modulo 2^32, so that a kernel in
another language gives the same bits; `>>` is a logical shift. Every 2^32 elements are a block with a key of
its own, of 64 bits, from the words seed, step, layer and block:

    z = 0
    for each word:  z = mix64((z ^ word) + 0x9E3779B97F4A7C15)          (modulo 2^64)
        mix64(z):   z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9
                    z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    a = z modulo 2^32,  b = z >> 32

and element i of the block has the number

    h = i + a
    h ^= h >> 16;  h *= 0x7FEB352D;  h ^= h >> 15
    h += b
    h *= 0x846CA68B;  h ^= h >> 16;  h *= 0x9E3779B1;  h ^= h >> 15
    k = h >> 8                                                          (24 bits)
"""

from __future__ import annotations

import numpy as np

RANDOM_BITS = 24
_BLOCK = 1 << 32
_MASK64 = (1 << 64) - 1
# As many elements at a time as fit in the processor's nearest memory, since each is read a dozen times.
_CHUNK = 1 << 13


def random_integers(count: int, *, seed: int, step: int, layer: int, first: int = 0) -> np.ndarray:
    """For the elements `first` to `first + count - 1` of a tensor, integers from 0 to 2^24 - 1, uniform.

    >>> whole = random_integers(10, seed=1, step=2, layer=3)
    >>> bool((whole[4:] == random_integers(6, seed=1, step=2, layer=3, first=4)).all())
    True
    """
    for name, word in (("seed", seed), ("step", step), ("layer", layer), ("first", first)):
        if not 0 <= word < 1 << 63:
            raise ValueError(f"{name} must be from 0 to 2^63-1, got {word}")
    numbers = np.empty(count, np.uint32)
    spare = np.empty(min(count, _CHUNK), np.uint32)
    done = 0
    while done < count:
        block, index = divmod(first + done, _BLOCK)
        size = min(count - done, _CHUNK, _BLOCK - index)
        _fill(numbers[done : done + size], spare[:size], index, block_key(seed, step, layer, block))
        done += size
    return numbers


def block_key(*words: int) -> tuple[int, int]:
    """The key (a, b) of a block of elements."""
    z = 0
    for word in words:
        z = ((z ^ word) + 0x9E3779B97F4A7C15) & _MASK64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
        z ^= z >> 31
    return z & 0xFFFFFFFF, z >> 32


def _fill(h: np.ndarray, spare: np.ndarray, index: int, key: tuple[int, int]) -> None:
    a, b = key
    h[:] = _COUNT[: len(h)]
    h += np.uint32((index + a) % _BLOCK)
    _xor_shifted(h, spare, 16)
    h *= np.uint32(0x7FEB352D)
    _xor_shifted(h, spare, 15)
    h += np.uint32(b)
    h *= np.uint32(0x846CA68B)
    _xor_shifted(h, spare, 16)
    h *= np.uint32(0x9E3779B1)
    _xor_shifted(h, spare, 15)
    h >>= np.uint32(32 - RANDOM_BITS)


def _xor_shifted(h: np.ndarray, spare: np.ndarray, by: int) -> None:
    np.right_shift(h, np.uint32(by), out=spare)
    h ^= spare


_COUNT = np.arange(_CHUNK, dtype=np.uint32)
