// Rounding and clipping of one value, written so that compilers vectorize loops over them; and the
// counter-based random numbers of stochastic rounding, whose slow reference is in lowbit/numerics.
#pragma once
#include "common/cpu.h"

#include <initializer_list>

// The fields of a Python Draw: random numbers depend on nothing but these and the element's index.
struct lowbit_draw {
    uint64_t seed, step, layer;
};

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

// The key for the elements of one block of 2^32.
struct RandomKey {
    uint32_t a = 0, b = 0;

    RandomKey() = default;
    RandomKey(const lowbit_draw& draw, uint64_t block) {
        uint64_t z = 0;
        for (uint64_t word : {draw.seed, draw.step, draw.layer, block}) {
            z = (z ^ word) + 0x9E3779B97F4A7C15u;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
            z ^= z >> 31;
        }
        a = uint32_t(z);
        b = uint32_t(z >> 32);
    }

    // 24 random bits for element `index` of the block.
    LOWBIT_INLINE uint32_t operator()(uint32_t index) const {
        uint32_t h = index + a;
        h = (h ^ (h >> 16)) * 0x7FEB352Du;
        h ^= h >> 15;
        h = (h + b) * 0x846CA68Bu;
        h = (h ^ (h >> 16)) * 0x9E3779B1u;
        return (h ^ (h >> 15)) >> 8;
    }
};

}  // namespace lowbit
