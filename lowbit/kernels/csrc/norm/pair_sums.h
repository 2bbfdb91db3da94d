// Sums of x and of x * other over rows, in double: 16 partial sums by position, the same bits for every
// instruction set.
#pragma once
#include "common/channel_blocks.h"

#include <cstring>
#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::norm {

// The pair at position i of a row goes to the sums i mod 16. Products of two floats are exact in double.
struct alignas(64) PairSums {
    double firsts[kLanes] = {}, products[kLanes] = {};

    // In the same order for every register width.
    static double total(const double* parts) {
        double all[kLanes];
        std::memcpy(all, parts, sizeof all);
        for (int apart = kLanes / 2; apart; apart /= 2) {
            for (int i = 0; i < apart; ++i) all[i] += all[i + apart];
        }
        return all[0];
    }
};

// Adds a row; `other` may be x.
typedef void (*AddPairs)(PairSums& sums, const float* x, const float* other, int64_t count);

#if LOWBIT_X86
LOWBIT_TARGET_AVX512 LOWBIT_INLINE void widen_avx512(const float* from, __m512d& to) {
    to = _mm512_maskz_cvtps_pd(__mmask8(-1), _mm256_loadu_ps(from));
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE void widen_avx2(const float* from, __m256d& to) {
    to = _mm256_cvtps_pd(_mm_loadu_ps(from));
}
#endif

LOWBIT_INLINE void widen(const float* from, Doubles& to) {
    Floats four;
    std::memcpy(&four, from, sizeof four);
    to = __builtin_convertvector(four, Doubles);
}

// Not one function for all, since of a conversion that is not an intrinsic compilers make one of two floats
// at a time. The last elements of a row are followed by zeros, which change no sum.
#define LOWBIT_ADD_PAIRS(NAME, TARGET, VECTOR, WIDEN)                                            \
    TARGET inline void NAME(PairSums& sums, const float* x, const float* other, int64_t count) { \
        constexpr int kWide = sizeof(VECTOR) / sizeof(double), kParts = kLanes / kWide;          \
        VECTOR firsts[kParts], products[kParts];                                                 \
        std::memcpy(firsts, sums.firsts, sizeof firsts);                                         \
        std::memcpy(products, sums.products, sizeof products);                                   \
        const bool is_same = x == other;                                                         \
        for (int64_t at = 0; at < count; at += kLanes) {                                         \
            const float *p = x + at, *q = other + at;                                            \
            float padded[2][kLanes];                                                             \
            if (count - at < kLanes) {                                                           \
                std::memset(padded, 0, sizeof padded);                                           \
                std::memcpy(padded[0], p, size_t(count - at) * sizeof(float));                   \
                std::memcpy(padded[1], q, size_t(count - at) * sizeof(float));                   \
                p = padded[0], q = padded[1];                                                    \
            }                                                                                    \
            LOWBIT_UNROLLED                                                                      \
            for (int part = 0; part < kParts; ++part) {                                          \
                VECTOR value, factor;                                                            \
                WIDEN(p + part * kWide, value);                                                  \
                firsts[part] += value;                                                           \
                if (is_same) {                                                                   \
                    factor = value;                                                              \
                } else {                                                                         \
                    WIDEN(q + part * kWide, factor);                                             \
                }                                                                                \
                products[part] += value * factor;                                                \
            }                                                                                    \
        }                                                                                        \
        std::memcpy(sums.firsts, firsts, sizeof firsts);                                         \
        std::memcpy(sums.products, products, sizeof products);                                   \
    }

#if LOWBIT_X86
LOWBIT_ADD_PAIRS(add_pairs_avx512, LOWBIT_TARGET_AVX512, __m512d, widen_avx512)
LOWBIT_ADD_PAIRS(add_pairs_avx2, LOWBIT_TARGET_AVX2, __m256d, widen_avx2)
#endif
LOWBIT_ADD_PAIRS(add_pairs_baseline, , Doubles, widen)

}  // namespace lowbit::norm
