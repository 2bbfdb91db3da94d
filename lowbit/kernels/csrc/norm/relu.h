// ReLU, which saves one bit per element for backward.
#pragma once
#include "norm/norm.h"

#include <cstring>
#if LOWBIT_X86
#include <emmintrin.h>
#endif

namespace lowbit::norm {

// Packs flags, bytes of 0 or 1, to bits, lowest first; `count` is a multiple of 8.
LOWBIT_INLINE void pack_flags(const uint8_t* flags, uint8_t* bits, int count) {
    for (int i = 0; i < count; i += 8) {
        uint64_t eight;
        std::memcpy(&eight, flags + i, sizeof eight);
        bits[i / 8] =
            uint8_t((eight * 0x0102040810204080u) >> 56);  // the multiplication moves flag i to bit 56 + i
    }
}

// y, and the flags of eight elements as bits.
LOWBIT_INLINE uint8_t relu_of_eight(const float* x, float* y) {
#if LOWBIT_X86
    int flags = 0;
    for (int half = 0; half < 2; ++half) {
        const __m128 value = _mm_loadu_ps(x + 4 * half), above = _mm_cmpgt_ps(value, _mm_setzero_ps());
        _mm_storeu_ps(y + 4 * half, _mm_and_ps(value, above));
        flags |= _mm_movemask_ps(above) << 4 * half;
    }
    return uint8_t(flags);
#else
    uint8_t flags[8], bits = 0;
    for (int i = 0; i < 8; ++i) {
        flags[i] = x[i] > 0;
        y[i] = x[i] > 0 ? x[i] : 0.0f;
    }
    pack_flags(flags, &bits, 8);
    return bits;
#endif
}

LOWBIT_INLINE void relu_forward(const float* x, float* y, uint8_t* bits, int64_t count) {
    const int64_t whole = count / 8, rest = count % 8;
    for (int64_t byte = 0; byte < whole; ++byte) bits[byte] = relu_of_eight(x + byte * 8, y + byte * 8);
    if (rest) {
        float last[8] = {}, last_y[8];
        std::memcpy(last, x + whole * 8, size_t(rest) * sizeof(float));
        bits[whole] = relu_of_eight(last, last_y);
        std::memcpy(y + whole * 8, last_y, size_t(rest) * sizeof(float));
    }
}

// The factors, 0 or 1, for the flags of four elements.
struct Factors {
    float of[16][4];

    constexpr Factors() : of() {
        for (int flags = 0; flags < 16; ++flags) {
            for (int i = 0; i < 4; ++i) of[flags][i] = float(flags >> i & 1);
        }
    }
};
constexpr Factors kFactors;

LOWBIT_INLINE void times_flags(const float* dy, int flags, float* dx) {
    Floats given, factors;
    std::memcpy(&given, dy, sizeof given);
    std::memcpy(&factors, kFactors.of[flags], sizeof factors);
    given *= factors;
    std::memcpy(dx, &given, sizeof given);
}

LOWBIT_INLINE void relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count) {
    const int64_t whole = count / 8;
    for (int64_t byte = 0; byte < whole; ++byte) {
        times_flags(dy + byte * 8, bits[byte] & 15, dx + byte * 8);
        times_flags(dy + byte * 8 + 4, bits[byte] >> 4, dx + byte * 8 + 4);
    }
    for (int64_t i = whole * 8; i < count; ++i) dx[i] = dy[i] * float(bits[whole] >> i % 8 & 1);
}

}  // namespace lowbit::norm
