// Stochastic rounding to powers of two with AVX2, written with intrinsics: compilers need half as many
// instructions again for LogStochastic of integers.h, which is its readable twin.
#pragma once
#include "quantize/integers.h"

#if LOWBIT_X86
#include <immintrin.h>

namespace lowbit {

// As RandomKey, for eight elements; `h` is their index plus the key's a.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i random_bits(__m256i h, __m256i b) {
    h = _mm256_xor_si256(h, _mm256_srli_epi32(h, 16));
    h = _mm256_mullo_epi32(h, _mm256_set1_epi32(int32_t(0x7FEB352Du)));
    h = _mm256_xor_si256(h, _mm256_srli_epi32(h, 15));
    h = _mm256_mullo_epi32(_mm256_add_epi32(h, b), _mm256_set1_epi32(int32_t(0x846CA68Bu)));
    h = _mm256_xor_si256(h, _mm256_srli_epi32(h, 16));
    h = _mm256_mullo_epi32(h, _mm256_set1_epi32(int32_t(0x9E3779B1u)));
    return _mm256_srli_epi32(_mm256_xor_si256(h, _mm256_srli_epi32(h, 15)), 8);
}

// The number of the power of two that a magnitude v <= 64 is rounded to: 0 for 0, 1 for 1, ... 7 for 64.
//
// In units of 2^-24 of the distance between neighbours, v lies at v * 2^24 below 1, and from 1 on at twice
// its bits, less those of 0.5 = 2^-1: a power has a multiple of 2^24, and the mantissa tells how far it is to
// the next one. The latter is less than the former below 1, and at least 2^24 from 1 on.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i power_number(__m256 v, __m256i k) {
    const __m256 below_one = _mm256_min_ps(v, _mm256_set1_ps(1.0f));
    const __m256i below = _mm256_cvttps_epi32(_mm256_mul_ps(below_one, _mm256_set1_ps(kUnit)));
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i above = _mm256_sub_epi32(_mm256_add_epi32(bits, bits), _mm256_set1_epi32(126 << 24));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_max_epi32(below, above), k), 24);
}

// 32 words to bytes, saturated, in the order in which _mm256_permutevar8x32_epi32 finds them.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i pack_words(const __m256i (&words)[4]) {
    return _mm256_packs_epi16(_mm256_packs_epi32(words[0], words[1]), _mm256_packs_epi32(words[2], words[3]));
}

// As convert_with for LogStochastic<1> and levels from -highest to highest <= 64, but for NaNs: returns
// whether there are any. Their integers are then undefined.
template <class Scales>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE bool log_one_draw_or_nan(const float* x, uint8_t* q, Scales scales,
                                                          int32_t count, float highest, RandomKey key,
                                                          uint32_t index) {
    constexpr int kWide = 8, kTogether = 4;  // lanes, and vectors whose bytes fill one
    const __m256 largest = _mm256_set1_ps(highest);
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256i powers =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 8, 16, 32, 64, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i b = _mm256_set1_epi32(int32_t(key.b));
    __m256i h = _mm256_add_epi32(_mm256_set1_epi32(int32_t(index + key.a)),
                                 _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256 nans = _mm256_setzero_ps();
    for (int32_t i = 0; i < count; i += kTogether * kWide) {
        __m256i given[kTogether], numbers[kTogether];
        __m256 quotients[kTogether];
        LOWBIT_UNROLLED
        for (int part = 0; part < kTogether; ++part) {
            const __m256 value = _mm256_loadu_ps(x + i + part * kWide);
            const __m256 v = _mm256_div_ps(value, scales(i + part * kWide));
            const __m256 size = _mm256_min_ps(_mm256_and_ps(v, no_sign), largest);
            given[part] = _mm256_castps_si256(value);
            quotients[part] = v;
            numbers[part] = power_number(size, random_bits(h, b));
            h = _mm256_add_epi32(h, _mm256_set1_epi32(kWide));
        }
        // Unordered: either is NaN.
        const __m256 first = _mm256_cmp_ps(quotients[0], quotients[1], _CMP_UNORD_Q);
        const __m256 second = _mm256_cmp_ps(quotients[2], quotients[3], _CMP_UNORD_Q);
        nans = _mm256_or_ps(nans, _mm256_or_ps(first, second));
        // Saturating keeps the sign of a value's bits; those of 0 are 0, whose number is 0.
        const __m256i sizes = _mm256_shuffle_epi8(powers, pack_words(numbers));
        const __m256i integers = _mm256_sign_epi8(sizes, pack_words(given));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i), _mm256_permutevar8x32_epi32(integers, order));
    }
    return _mm256_movemask_ps(nans) != 0;
}

struct OneScaleAvx2 {
    __m256 value;
    LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256 operator()(int32_t) const { return value; }
};

struct ScaleEachAvx2 {
    const float* values;
    LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256 operator()(int32_t i) const {
        return _mm256_loadu_ps(values + i);
    }
};

// convert<LogStochastic<1>>, also where processors have AVX-512, whose compiled twin is slower than this.
LOWBIT_TARGET_AVX2 inline int32_t log_one_draw_avx2(const float* x, uint8_t* q, const float* scales,
                                                    bool each, int32_t count, float lowest, float highest,
                                                    const RandomKey* keys, uint32_t index) {
    static_assert(kVector % 32 == 0, "whole vectors of bytes");
    const int32_t whole = count & -kVector;
    if (lowest == -highest && highest <= 64.0f) {
        const bool has_nan =
            each ? log_one_draw_or_nan(x, q, ScaleEachAvx2{scales}, whole, highest, keys[0], index)
                 : log_one_draw_or_nan(x, q, OneScaleAvx2{_mm256_set1_ps(scales[0])}, whole, highest, keys[0],
                                       index);
        if (!has_nan) return 0;
    }
    return convert<LogStochastic<1>>(x, q, scales, each, count, lowest, highest, keys, index);
}

}  // namespace lowbit

#endif
