// Micro-kernels with VNNI: vpdpbusd is a whole step, bytes into int32, so that nothing accumulates in int16.
//
// Its latency is five cycles and two can start per cycle: at least ten independent sums hide it.
#include "gemm/microkernel.h"

#if LOWBIT_X86
#include <immintrin.h>
#include <string.h>

namespace lowbit::gemm {
namespace {

template <int kPixels>
inline void pixel_pointers(const Strip& strip, int64_t p, const uint8_t* (&from)[kPixels]) {
    for (int i = 0; i < kPixels; i++) from[i] = strip.source + strip.pixel_offsets[p + i];
}

inline int32_t load_word(const uint8_t* from) {
    int32_t bytes;
    memcpy(&bytes, from, 4);
    return bytes;
}

template <int kPixels, int kPanels>
LOWBIT_TARGET_AVX512VNNI LOWBIT_INLINE void run_avx512(const Strip& strip) {
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m512i sums[kPixels][kPanels];
        pixel_pointers(strip, p, from);
        for (int i = 0; i < kPixels; i++) {
            for (int j = 0; j < kPanels; j++) {
                sums[i][j] = _mm512_loadu_si512(strip.initial_sums + j * kPanel);
            }
        }
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                __m512i weights[kPanels];
                for (int j = 0; j < kPanels; j++) {
                    weights[j] = _mm512_loadu_si512(panel + j * strip.panel_bytes);
                }
                for (int i = 0; i < kPixels; i++) {
                    const __m512i a = _mm512_set1_epi32(load_word(from[i] + at));
                    for (int j = 0; j < kPanels; j++) {
                        sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], a, weights[j]);
                    }
                }
            }
        }
        for (int i = 0; i < kPixels; i++) {
            for (int j = 0; j < kPanels; j++) {
                _mm512_storeu_si512(strip.sums + j * kPanelSums + (p + i) * kPanel, sums[i][j]);
            }
        }
    }
}

}  // namespace

LOWBIT_TARGET_AVX512VNNI void run_int8_avx512vnni(const Strip& strip) { run_avx512<8, 1>(strip); }

LOWBIT_TARGET_AVX512VNNI void run_int8_two_panels_avx512vnni(const Strip& strip) { run_avx512<8, 2>(strip); }

#if LOWBIT_AVXVNNI
LOWBIT_TARGET_AVXVNNI void run_int8_avxvnni(const Strip& strip) {
    constexpr int kPixels = 6;
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        pixel_pointers(strip, p, from);
        for (int i = 0; i < kPixels; i++) {
            for (int half = 0; half < 2; half++) {
                sums[i][half] =
                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(strip.initial_sums) + half);
            }
        }
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                const __m256i* weights = reinterpret_cast<const __m256i*>(panel);
                const __m256i low = _mm256_loadu_si256(weights), high = _mm256_loadu_si256(weights + 1);
                for (int i = 0; i < kPixels; i++) {
                    const __m256i a = _mm256_set1_epi32(load_word(from[i] + at));
                    sums[i][0] = _mm256_dpbusd_avx_epi32(sums[i][0], a, low);
                    sums[i][1] = _mm256_dpbusd_avx_epi32(sums[i][1], a, high);
                }
            }
        }
        for (int i = 0; i < kPixels; i++) {
            for (int half = 0; half < 2; half++) {
                int32_t* to = strip.sums + (p + i) * kPanel + 8 * half;
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sums[i][half]);
            }
        }
    }
}
#endif

}  // namespace lowbit::gemm
#endif
