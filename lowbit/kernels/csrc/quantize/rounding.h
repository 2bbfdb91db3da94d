// Rounding and clipping of one value, written so that compilers vectorize loops over them.
#pragma once
#include "common/cpu.h"

namespace lowbit {

constexpr float kNoFractions = 8388608.0f;  // 2^23: floats from here on are integers

// Rounds to the nearest integer, halves to even, for magnitudes below 2^23; zeros keep their sign. Adding
// 2^23 makes the addition itself round; roundf and rintf do not vectorize without SSE4.1.
LOWBIT_INLINE float round_half_even(float v) {
    return __builtin_copysignf((__builtin_fabsf(v) + kNoFractions) - kNoFractions, v);
}

// NaN fails both comparisons and stays NaN.
LOWBIT_INLINE float clip(float v, float lower, float upper) {
    v = v < lower ? lower : v;
    return v > upper ? upper : v;
}

LOWBIT_INLINE int32_t bits_of(float v) {
    int32_t bits;
    __builtin_memcpy(&bits, &v, sizeof bits);
    return bits;
}

LOWBIT_INLINE float float_of(int32_t bits) {
    float v;
    __builtin_memcpy(&v, &bits, sizeof v);
    return v;
}

// As round_half_even, to an integer: in the sum with 1.5 * 2^23, the last bit of the mantissa counts 1.
LOWBIT_INLINE int32_t nearest_integer(float v) {
    const float shift = 0x1.8p23f;
    return bits_of(v + shift) - bits_of(shift);
}

}  // namespace lowbit
