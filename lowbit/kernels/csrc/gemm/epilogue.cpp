// The epilogue of forward and grad_input in portable C++, AVX2 and AVX-512; see conv_gemm.h.
#include "gemm/conv_gemm.h"

#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::gemm {
namespace {

#if LOWBIT_X86

constexpr __mmask16 kAll =
    0xffff;  // the intrinsics without masks cause warnings of GCC 12 about uninitialized registers

LOWBIT_TARGET_AVX512 LOWBIT_INLINE __m512 load16(const int32_t* from) {
    return _mm512_maskz_cvtepi32_ps(kAll, _mm512_loadu_si512(from));
}
LOWBIT_TARGET_AVX512 LOWBIT_INLINE __m512 load16(const float* from) { return _mm512_loadu_ps(from); }

LOWBIT_TARGET_AVX512 LOWBIT_INLINE __m512 unpack_pairs(__m512 low, __m512 high, bool second) {
    const __m512d a = _mm512_castps_pd(low), b = _mm512_castps_pd(high);
    return _mm512_castpd_ps(second ? _mm512_maskz_unpackhi_pd(0xff, a, b)
                                   : _mm512_maskz_unpacklo_pd(0xff, a, b));
}

// Quarters 0 and 2 of both registers, or 1 and 3.
LOWBIT_TARGET_AVX512 LOWBIT_INLINE __m512 shuffle_quarters(__m512 low, __m512 high, bool odd) {
    return odd ? _mm512_maskz_shuffle_f32x4(kAll, low, high, 0xdd)
               : _mm512_maskz_shuffle_f32x4(kAll, low, high, 0x88);
}

LOWBIT_TARGET_AVX512 LOWBIT_INLINE void transpose(__m512 (&rows)[16]) {
    __m512 other[16];
    for (int i = 0; i < 16; i += 2) {
        other[i] = _mm512_maskz_unpacklo_ps(kAll, rows[i], rows[i + 1]);
        other[i + 1] = _mm512_maskz_unpackhi_ps(kAll, rows[i], rows[i + 1]);
    }
    // Row 4 * f + k: in quarter q, channel 4 * q + k of the four pixels from 4 * f on;
    for (int f = 0; f < 16; f += 4) {
        for (int k = 0; k < 4; k++) rows[f + k] = unpack_pairs(other[f + k / 2], other[f + 2 + k / 2], k % 2);
    }
    // then the eight pixels of a half for channels k and 8 + k (or 4 + k and 12 + k); then all sixteen.
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 4; i++) {
            const int half = i % 2, odd = i / 2;
            other[4 * k + i] = shuffle_quarters(rows[8 * half + k], rows[8 * half + 4 + k], odd);
        }
    }
    for (int k = 0; k < 4; k++) {
        for (int q = 0; q < 4; q++) {
            const int from = 4 * k + 2 * (q % 2);
            rows[4 * q + k] = shuffle_quarters(other[from], other[from + 1], q / 2);
        }
    }
}

template <class Sum>
LOWBIT_TARGET_AVX512 void store_avx512(const Sum* sums, const OutputTile& out) {
    const __m512 scale = _mm512_loadu_ps(out.scale);
    const __m512 bias = out.bias ? _mm512_loadu_ps(out.bias) : _mm512_setzero_ps();
    for (int64_t p = 0; p < out.pixels; p += 16) {
        const int64_t pixels = out.pixels - p < 16 ? out.pixels - p : 16;
        __m512 rows[16];
        for (int i = 0; i < 16; i++) {
            rows[i] = _mm512_mul_ps(load16(sums + (p + i) * kPanel), scale);
            if (out.bias) rows[i] = _mm512_add_ps(rows[i], bias);
        }
        transpose(rows);
        const __mmask16 wanted = static_cast<__mmask16>((1u << pixels) - 1);
        if (out.output_offsets) {
            const int64_t* output_offsets = out.output_offsets + p;
            for (int64_t c = 0; c < out.channels; c++) {
                alignas(64) float values[16];
                _mm512_store_ps(values, rows[c]);
                for (int64_t i = 0; i < pixels; i++) out.first[c * out.plane + output_offsets[i]] = values[i];
            }
        } else {
            for (int64_t c = 0; c < out.channels; c++) {
                _mm512_mask_storeu_ps(out.first + c * out.plane + p, wanted, rows[c]);
            }
        }
    }
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256 load8(const int32_t* from) {
    return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256 load8(const float* from) { return _mm256_loadu_ps(from); }

LOWBIT_TARGET_AVX2 LOWBIT_INLINE void transpose(__m256 (&rows)[8]) {
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

// A mask of the first `count` of eight lanes.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i first_lanes(int64_t count) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}

template <class Sum>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256 value_of(const Sum* sums, const OutputTile& out, __m256 scale,
                                                 __m256 bias) {
    const __m256 value = _mm256_mul_ps(load8(sums), scale);
    return out.bias ? _mm256_add_ps(value, bias) : value;
}

template <class Sum>
LOWBIT_TARGET_AVX2 void store_avx2(const Sum* sums, const OutputTile& out) {
    for (int64_t c = 0; c < out.channels; c += 8) {
        const __m256 scale = _mm256_loadu_ps(out.scale + c);
        const __m256 bias = out.bias ? _mm256_loadu_ps(out.bias + c) : _mm256_setzero_ps();
        const int64_t channels = out.channels - c < 8 ? out.channels - c : 8;
        float* to = out.first + c * out.plane;
        for (int64_t p = 0; p < out.pixels; p += 8) {
            const int64_t pixels = out.pixels - p < 8 ? out.pixels - p : 8;
            __m256 rows[8];
            for (int i = 0; i < 8; i++) rows[i] = value_of(sums + (p + i) * kPanel + c, out, scale, bias);
            transpose(rows);
            if (out.output_offsets) {
                const int64_t* output_offsets = out.output_offsets + p;
                for (int64_t j = 0; j < channels; j++) {
                    alignas(32) float values[8];
                    _mm256_store_ps(values, rows[j]);
                    for (int64_t i = 0; i < pixels; i++) to[j * out.plane + output_offsets[i]] = values[i];
                }
            } else if (pixels == 8) {
                for (int64_t j = 0; j < channels; j++) _mm256_storeu_ps(to + j * out.plane + p, rows[j]);
            } else {
                const __m256i wanted = first_lanes(pixels);
                for (int64_t j = 0; j < channels; j++) {
                    _mm256_maskstore_ps(to + j * out.plane + p, wanted, rows[j]);
                }
            }
        }
    }
}

LOWBIT_TARGET_AVX2 void accumulate_scaled_avx2(const int32_t* sums, const float* scale, int64_t pixels,
                                               float* totals) {
    for (int64_t p = 0; p < pixels; p++) {
        const __m256 factor = _mm256_broadcast_ss(scale + p);
        for (int64_t c = p * kPanel; c < (p + 1) * kPanel; c += 8) {
            const __m256 term = _mm256_mul_ps(load8(sums + c), factor);
            _mm256_storeu_ps(totals + c, _mm256_add_ps(_mm256_loadu_ps(totals + c), term));
        }
    }
}

bool has_avx2() { return instruction_set() != InstructionSet::baseline; }
bool has_avx512() { return instruction_set() >= InstructionSet::avx512; }
#endif

template <class Sum>
void store_portable(const Sum* sums, const OutputTile& out) {
    for (int64_t c = 0; c < out.channels; c++) {
        float* to = out.first + c * out.plane;
        for (int64_t p = 0; p < out.pixels; p++) {
            const float value = static_cast<float>(sums[p * kPanel + c]) * out.scale[c];
            to[out.output_offsets ? out.output_offsets[p] : p] = out.bias ? value + out.bias[c] : value;
        }
    }
}

template <class Sum>
void accumulate_portable(const Sum* sums, const float* scale, int64_t pixels, float* totals) {
    for (int64_t p = 0; p < pixels; p++) {
        for (int64_t c = 0; c < kPanel; c++) {
            totals[p * kPanel + c] += static_cast<float>(sums[p * kPanel + c]) * scale[p];
        }
    }
}

template <class Sum>
void store(const Sum* sums, const OutputTile& out) {
#if LOWBIT_X86
    if (has_avx512()) return store_avx512(sums, out);
    if (has_avx2()) return store_avx2(sums, out);
#endif
    store_portable(sums, out);
}

}  // namespace

void store_dequantized(const int32_t* sums, const OutputTile& out) { store(sums, out); }

void store_dequantized(const float* sums, const OutputTile& out) { store(sums, out); }

void store_dequantized(const int64_t* sums, const OutputTile& out) { store_portable(sums, out); }

void accumulate_scaled(const int32_t* sums, const float* scale, int64_t pixels, float* totals) {
#if LOWBIT_X86
    if (has_avx2()) return accumulate_scaled_avx2(sums, scale, pixels, totals);
#endif
    accumulate_portable(sums, scale, pixels, totals);
}

void accumulate_scaled(const int64_t* sums, const float* scale, int64_t pixels, float* totals) {
    accumulate_portable(sums, scale, pixels, totals);
}

}  // namespace lowbit::gemm
