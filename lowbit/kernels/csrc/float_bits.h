// Floats as their bits, and the nearest integer by way of them.
#pragma once
#include "loops.h"

namespace lowbit {

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

// Halves to the even one, for values of a grid's size: in the sum, the last bit counts 1.
LOWBIT_INLINE int32_t nearest_integer(float v) {
    const float shift = 0x1.8p23f;
    return bits_of(v + shift) - bits_of(shift);
}

}  // namespace lowbit
