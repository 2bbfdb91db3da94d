"""Rounding to integers or powers of two: to the nearest, or at random such that the mean is kept.

Random numbers come from a counter-based generator: each is a function of seed, step, layer and element.
Nothing is carried from one number to the next, so they do not depend on threads, on how a tensor is split, or
on a restart. The algorithm uses 32-bit integer operations, modulo 2^32, so that a kernel in another language
gives the same bits; `>>` is a logical shift. Every 2^32 elements are a block with its own key, of
64 bits, from the words seed, step, layer and block:

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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor

from lowbit.errors import LowbitError, did_you_mean
from lowbit.numerics.exact import add, divide, multiply, subtract

RANDOM_BITS = 24
_BLOCK = 1 << 32
_MASK64 = (1 << 64) - 1
# As many elements at a time as fit in the processor's nearest memory, since each is read a dozen times.
_CHUNK = 1 << 13
_LARGEST_POWER = 64  # that a signed byte holds
Rounding = Callable[[Tensor], Tensor]
_NAMES = ("nearest", "stochastic")


def rounding_names() -> list[str]:
    """The words for roundings, sorted."""
    return sorted(_NAMES)


def parse_rounding(word: str) -> str:
    """The word itself, when it is one for a rounding; otherwise an error with the nearest valid one.

    >>> parse_rounding("nearest")
    'nearest'
    """
    if not isinstance(word, str):
        raise LowbitError(f"rounding must be a word ({', '.join(_NAMES)}), not {word!r}")
    if word not in _NAMES:
        raise LowbitError(f'unknown rounding "{word}": {did_you_mean(word, _NAMES)}')
    return word


def nearest(x: Tensor) -> Tensor:
    """The nearest integers; halves go to the even one. A plain operator, so that it can be exported.

    >>> nearest(paddle.to_tensor([0.5, 1.5, -2.5])).tolist()
    [0.0, 2.0, -2.0]
    """
    return paddle.round(x)


@dataclass(frozen=True, kw_only=True)
class Stochastic:
    """One of the two integers around a value, the nearer the likelier: sign(x) * floor(|x| + u).

    `u` is k / 2^24 with the 24 bits `k` of `random_integers`. The sum is not rounded: whether
    it reaches the next integer is decided by comparing the fraction of |x| with 1 - u, which are both exact.
    So the mean is off by less than 2^-24, and an integer stays what it is.

    `layer` is a different number for every tensor that is rounded in a step; `first` is the place of the
    tensor's first element, when the tensor is a part of a larger one.

    >>> rounding = Stochastic(seed=0, step=17, layer=3)
    >>> rounding(paddle.to_tensor([3.0, -2.0])).tolist()
    [3.0, -2.0]
    """

    seed: int
    step: int
    layer: int
    first: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise LowbitError(
                "stochastic rounding is for training: it cannot be part of an exported or static program"
            )
        magnitude = paddle.abs(x)
        whole = paddle.floor(magnitude)
        fraction = subtract(magnitude, whole)
        up = (fraction >= self._one_minus_u(x)).cast("float32")
        return multiply(paddle.sign(x), add(whole, up))

    def _one_minus_u(self, x: Tensor) -> Tensor:
        k = random_integers(x.size, seed=self.seed, step=self.step, layer=self.layer, first=self.first)
        k = np.subtract(np.uint32(1 << RANDOM_BITS), k).astype(np.float32).reshape(x.shape)
        k *= np.float32(2.0**-RANDOM_BITS)
        return paddle.to_tensor(k, place=x.place)


def log_round(v: Tensor, rounding: Rounding = nearest) -> Tensor:
    """0 or a power of two, whichever of the two around |v| the rounding takes, with the sign of `v`.

    `v` is already divided by the scale and clipped: at most 64. The way from the one below to the one above
    counts as 1 and is rounded: `nearest` takes the nearer one, and from halfway the lower. Each operation is
    exact, so a kernel gives the same bits.

    This is the grid of LUQ, for gradients, which span many magnitudes. With b bits there are 2^(b-1) - 1
    powers and their negatives: 1, 2, 4 with three, 1 to 64 with four. The scale is max |x| divided by the
    largest, so nothing is clipped, and stochastic rounding keeps the mean: below 1 as well, where a value
    becomes 0 or 1.

    >>> log_round(paddle.to_tensor([0.5, 0.7, -1.5, 3.1, -64.0])).tolist()
    [0.0, 1.0, -1.0, 4.0, -64.0]
    """
    size = paddle.abs(v)
    below = paddle.zeros_like(size)
    power = 1
    while power <= _LARGEST_POWER:
        below = paddle.where(size >= power, paddle.full_like(size, power), below)
        power *= 2
    step = paddle.clip(below, min=1.0)
    up = rounding(divide(subtract(size, below), step))
    return multiply(paddle.sign(v), add(below, multiply(up, step)))


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
