// Finishing with AVX2: eight pixels times eight channels are transposed in registers; see finish.h.
#include "finish.h"

#if LOWBIT_X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX2_INLINE AVX2 inline __attribute__((always_inline))

namespace lowbit::conv {
namespace {

AVX2_INLINE __m256 eight(const int32_t* from) {
    return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
AVX2_INLINE __m256 eight(const float* from) { return _mm256_loadu_ps(from); }

AVX2_INLINE void transpose(__m256 (&rows)[8]) {
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; j++) {
            const __m256d low = _mm256_castps_pd(pairs[i + j]), high = _mm256_castps_pd(pairs[i + 2 + j]);
            fours[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
            fours[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
        }
    }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

// Ones for the first `count` of eight.
AVX2_INLINE __m256i first_of_eight(int64_t count) {
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), places);
}

template <class Sum>
AVX2_INLINE __m256 value_of(const Sum* sums, const Planes& planes, __m256 scale, __m256 bias) {
    const __m256 value = _mm256_mul_ps(eight(sums), scale);
    return planes.bias ? _mm256_add_ps(value, bias) : value;
}

template <class Sum>
AVX2_INLINE void finish_as(const Sum* sums, const Planes& planes) {
    for (int64_t c = 0; c < planes.channels; c += 8) {
        const __m256 scale = _mm256_loadu_ps(planes.scale + c);
        const __m256 bias = planes.bias ? _mm256_loadu_ps(planes.bias + c) : _mm256_setzero_ps();
        const int64_t channels = planes.channels - c < 8 ? planes.channels - c : 8;
        float* to = planes.first + c * planes.plane;
        for (int64_t p = 0; p < planes.pixels; p += 8) {
            const int64_t pixels = planes.pixels - p < 8 ? planes.pixels - p : 8;
            __m256 rows[8];
            for (int i = 0; i < 8; i++) rows[i] = value_of(sums + (p + i) * kPanel + c, planes, scale, bias);
            transpose(rows);
            if (planes.targets) {
                const int64_t* targets = planes.targets + p;
                for (int64_t j = 0; j < channels; j++) {
                    alignas(32) float values[8];
                    _mm256_store_ps(values, rows[j]);
                    for (int64_t i = 0; i < pixels; i++) to[j * planes.plane + targets[i]] = values[i];
                }
            } else if (pixels == 8) {
                for (int64_t j = 0; j < channels; j++) _mm256_storeu_ps(to + j * planes.plane + p, rows[j]);
            } else {
                const __m256i wanted = first_of_eight(pixels);
                for (int64_t j = 0; j < channels; j++) {
                    _mm256_maskstore_ps(to + j * planes.plane + p, wanted, rows[j]);
                }
            }
        }
    }
}

}  // namespace

AVX2 void finish_avx2(const int32_t* sums, const Planes& planes) { finish_as(sums, planes); }

AVX2 void finish_avx2(const float* sums, const Planes& planes) { finish_as(sums, planes); }

AVX2 void add_scaled_avx2(const int32_t* sums, const float* scale, int64_t pixels, float* totals) {
    for (int64_t p = 0; p < pixels; p++) {
        const __m256 factor = _mm256_broadcast_ss(scale + p);
        for (int64_t c = p * kPanel; c < (p + 1) * kPanel; c += 8) {
            const __m256 term = _mm256_mul_ps(eight(sums + c), factor);
            _mm256_storeu_ps(totals + c, _mm256_add_ps(_mm256_loadu_ps(totals + c), term));
        }
    }
}

}  // namespace lowbit::conv
#endif
