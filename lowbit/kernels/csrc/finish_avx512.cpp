// Finishing with AVX-512: sixteen pixels times sixteen channels are transposed in registers; see finish.h.
#include "finish.h"

#if LOWBIT_X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define AVX512_INLINE AVX512 inline __attribute__((always_inline))

namespace lowbit::conv {
namespace {

constexpr __mmask16 kAll = 0xffff;  // GCC 12 warns of what its functions without masks do

AVX512_INLINE __m512 sixteen(const int32_t* from) {
    return _mm512_maskz_cvtepi32_ps(kAll, _mm512_loadu_si512(from));
}
AVX512_INLINE __m512 sixteen(const float* from) { return _mm512_loadu_ps(from); }

AVX512_INLINE __m512 four_of(__m512 low, __m512 high, bool second) {
    const __m512d a = _mm512_castps_pd(low), b = _mm512_castps_pd(high);
    return _mm512_castpd_ps(second ? _mm512_maskz_unpackhi_pd(0xff, a, b) : _mm512_maskz_unpacklo_pd(0xff, a, b));
}

// Quarters 0 and 2 of both, or 1 and 3.
AVX512_INLINE __m512 quarters_of(__m512 low, __m512 high, bool odd) {
    return odd ? _mm512_maskz_shuffle_f32x4(kAll, low, high, 0xdd)
               : _mm512_maskz_shuffle_f32x4(kAll, low, high, 0x88);
}

AVX512_INLINE void transpose(__m512 (&rows)[16]) {
    __m512 other[16];
    for (int i = 0; i < 16; i += 2) {
        other[i] = _mm512_maskz_unpacklo_ps(kAll, rows[i], rows[i + 1]);
        other[i + 1] = _mm512_maskz_unpackhi_ps(kAll, rows[i], rows[i + 1]);
    }
    // Row 4 * f + k becomes, in every quarter q, channel 4 * q + k of the four pixels from 4 * f on;
    for (int f = 0; f < 16; f += 4) {
        for (int k = 0; k < 4; k++) rows[f + k] = four_of(other[f + k / 2], other[f + 2 + k / 2], k % 2);
    }
    // then, of channels k and 8 + k (or 4 + k and 12 + k), the eight pixels of a half; and then all of them.
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 4; i++) {
            const int half = i % 2, odd = i / 2;
            other[4 * k + i] = quarters_of(rows[8 * half + k], rows[8 * half + 4 + k], odd);
        }
    }
    for (int k = 0; k < 4; k++) {
        for (int q = 0; q < 4; q++) {
            const int from = 4 * k + 2 * (q % 2);
            rows[4 * q + k] = quarters_of(other[from], other[from + 1], q / 2);
        }
    }
}

template <class Sum>
AVX512_INLINE void finish_as(const Sum* sums, const Planes& planes) {
    const __m512 scale = _mm512_loadu_ps(planes.scale);
    const __m512 bias = planes.bias ? _mm512_loadu_ps(planes.bias) : _mm512_setzero_ps();
    for (int64_t p = 0; p < planes.pixels; p += 16) {
        const int64_t pixels = planes.pixels - p < 16 ? planes.pixels - p : 16;
        __m512 rows[16];
        for (int i = 0; i < 16; i++) {
            rows[i] = _mm512_mul_ps(sixteen(sums + (p + i) * kPanel), scale);
            if (planes.bias) rows[i] = _mm512_add_ps(rows[i], bias);
        }
        transpose(rows);
        const __mmask16 wanted = static_cast<__mmask16>((1u << pixels) - 1);
        if (planes.targets) {
            const int64_t* targets = planes.targets + p;
            for (int64_t c = 0; c < planes.channels; c++) {
                alignas(64) float values[16];
                _mm512_store_ps(values, rows[c]);
                for (int64_t i = 0; i < pixels; i++) planes.first[c * planes.plane + targets[i]] = values[i];
            }
        } else {
            for (int64_t c = 0; c < planes.channels; c++) {
                _mm512_mask_storeu_ps(planes.first + c * planes.plane + p, wanted, rows[c]);
            }
        }
    }
}

}  // namespace

AVX512 void finish_avx512(const int32_t* sums, const Planes& planes) { finish_as(sums, planes); }

AVX512 void finish_avx512(const float* sums, const Planes& planes) { finish_as(sums, planes); }

}  // namespace lowbit::conv
#endif
