// The C interface of the passes between fp32 tensors and small integers: plain C, raw pointers. What is large is
// done on several threads.
//
// A tensor is contiguous, with up to four axes (the missing ones in front, of size 1); axis a owns scales when
// owns[a] is not 0. A group is the elements that share one; scales and ranges are contiguous, one per group, in the
// order of the tensor's owning axes. Integers are int8, or uint8 where the lowest is not below 0, one byte each, in
// the order of the tensor. Pointers must not overlap. Nothing is allocated and nothing can fail.
//
// The slow twins are in lowbit/numerics: groups, scale, mse, quantize, rounding, log_grid, rotation. Results are the
// same bits for every instruction set and number of threads.
#pragma once
#include "kernels.h"

struct lowbit_axes {
    int64_t sizes[4];
    int32_t owns[4];
};

// The integers from lowest to highest; of a log grid 0 and the powers of two up to the highest, and their negatives.
struct lowbit_levels {
    int32_t lowest, highest;
    int32_t is_log;
};

// What random numbers are made from, as in lowbit/numerics/counter_random.py.
struct lowbit_draw {
    uint64_t seed, step, layer;
};

// ranges[g] = the largest |x|, or, not signed, the largest of 0 and x; NaN where a value is NaN.
LOWBIT_PUBLIC void lowbit_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t is_signed);

// From the ranges of `lowbit_ranges`, signed, to those with the least squared error, in place; turns > 0. Ranges that
// are not known are found before, group by group, while a group's values are in the cache.
LOWBIT_PUBLIC void lowbit_mse_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t lowest,
                                     int32_t highest, int32_t turns, int32_t is_known);

// scales[i] = the scale with which ranges[i] is the highest integer: 1 for 0, NaN where it is not finite.
LOWBIT_PUBLIC void lowbit_scales(const float* ranges, float* scales, int64_t count, int32_t lowest, int32_t highest);

// q = clip(x / scale) rounded to the nearest (no draws), or at random by the draw; with two draws the sum of the two
// integers, which must fit into a byte. `first` is the number of the tensor's first element for the draws. What is
// NaN becomes 0; returned is how many did.
LOWBIT_PUBLIC int64_t lowbit_to_integers(const float* x, void* q, const float* scales, const lowbit_axes* axes,
                                         const lowbit_levels* levels, const lowbit_draw* draws, int32_t count_draws,
                                         uint64_t first);

// y = q * scale.
LOWBIT_PUBLIC void lowbit_from_integers(const void* q, float* y, const float* scales, const lowbit_axes* axes,
                                        int32_t is_signed);

// Two integers of 4 bits in a byte, the first in the lower half; behind an odd number, 0.
LOWBIT_PUBLIC void lowbit_pack_nibbles(const void* q, uint8_t* packed, int64_t count);
LOWBIT_PUBLIC void lowbit_unpack_nibbles(const uint8_t* packed, void* q, int64_t count, int32_t is_signed);

// The orthonormal Walsh-Hadamard transform of every `block` consecutive elements along the middle axis of
// [before, size, after]; block is a power of two up to 64 that divides the size. Its own inverse.
LOWBIT_PUBLIC void lowbit_hadamard(const float* x, float* y, int64_t before, int64_t size, int64_t after,
                                   int64_t block);
