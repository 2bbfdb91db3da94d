// The inner loops with VNNI, whose one instruction is a whole step: no narrow sums, nothing to widen.
//
// Its latency is five and two can start at a time, so at least ten sums must be on the way.
#include "tiles.h"

#if LOWBIT_X86
#include <immintrin.h>
#include <string.h>

#define AVXVNNI __attribute__((target("avx2,avxvnni")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

namespace lowbit::conv {
namespace {

template <int kPixels>
inline void find(const Strip& strip, int64_t p, const uint8_t* (&from)[kPixels]) {
    for (int i = 0; i < kPixels; i++) from[i] = strip.source + strip.places[p + i];
}

inline int32_t four_bytes(const uint8_t* from) {
    int32_t bytes;
    memcpy(&bytes, from, 4);
    return bytes;
}

template <int kPixels, int kPanels>
AVX512 inline __attribute__((always_inline)) void run_avx512(const Strip& strip) {
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m512i sums[kPixels][kPanels];
        find(strip, p, from);
        for (int i = 0; i < kPixels; i++) {
            for (int j = 0; j < kPanels; j++) sums[i][j] = _mm512_loadu_si512(strip.start + j * kPanel);
        }
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                __m512i weights[kPanels];
                for (int j = 0; j < kPanels; j++) weights[j] = _mm512_loadu_si512(panel + j * strip.panel_bytes);
                for (int i = 0; i < kPixels; i++) {
                    const __m512i a = _mm512_set1_epi32(four_bytes(from[i] + at));
                    for (int j = 0; j < kPanels; j++) sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], a, weights[j]);
                }
            }
        }
        for (int i = 0; i < kPixels; i++) {
            for (int j = 0; j < kPanels; j++) {
                _mm512_storeu_si512(strip.sums + j * kPanelOfSums + (p + i) * kPanel, sums[i][j]);
            }
        }
    }
}

}  // namespace

AVX512 void run_bytes_avx512vnni(const Strip& strip) { run_avx512<8, 1>(strip); }

AVX512 void run_two_panels_avx512vnni(const Strip& strip) { run_avx512<8, 2>(strip); }

#if LOWBIT_AVXVNNI
AVXVNNI void run_bytes_avxvnni(const Strip& strip) {
    constexpr int kPixels = 6;
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        find(strip, p, from);
        for (int i = 0; i < kPixels; i++) {
            for (int half = 0; half < 2; half++) {
                sums[i][half] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(strip.start) + half);
            }
        }
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                const __m256i* weights = reinterpret_cast<const __m256i*>(panel);
                const __m256i low = _mm256_loadu_si256(weights), high = _mm256_loadu_si256(weights + 1);
                for (int i = 0; i < kPixels; i++) {
                    const __m256i a = _mm256_set1_epi32(four_bytes(from[i] + at));
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

}  // namespace lowbit::conv
#endif
