// Micro-kernels for deployed weights that gemm/ does not have; gemm/microkernel.h explains strips and panels.
#include "common/cpu.h"
#include "runtime/conv_step.h"

#if LOWBIT_X86
#include <immintrin.h>

namespace lowbit::runtime {
namespace {

LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add32(__m256i& sum, __m256i term) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term));  // see gemm/microkernel_avx2.cpp
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

}  // namespace

// Bytes of the source are widened in registers, weights are int16: exact for any 8-bit weights.
LOWBIT_TARGET_AVX2 void run_wide_avx2(const gemm::Strip& strip) {
    constexpr int kPixels = 4;
    const __m256i first_two = _mm256_set1_epi32(static_cast<int>(0x80018000u));
    const __m256i last_two = _mm256_set1_epi32(static_cast<int>(0x80038002u));
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        for (int i = 0; i < kPixels; i++) {
            from[i] = strip.source + strip.pixel_offsets[p + i];
            sums[i][0] = load(reinterpret_cast<const uint8_t*>(strip.initial_sums));
            sums[i][1] = load(reinterpret_cast<const uint8_t*>(strip.initial_sums + 8));
        }
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 128) {
                for (int i = 0; i < kPixels; i++) {
                    int32_t word;
                    memcpy(&word, from[i] + at, 4);
                    const __m256i bytes = _mm256_set1_epi32(word);
                    const __m256i first = _mm256_shuffle_epi8(bytes, first_two);
                    const __m256i last = _mm256_shuffle_epi8(bytes, last_two);
                    add32(sums[i][0], _mm256_madd_epi16(first, load(panel)));
                    add32(sums[i][1], _mm256_madd_epi16(first, load(panel + 32)));
                    add32(sums[i][0], _mm256_madd_epi16(last, load(panel + 64)));
                    add32(sums[i][1], _mm256_madd_epi16(last, load(panel + 96)));
                }
            }
        }
        for (int i = 0; i < kPixels; i++) {
            __m256i* to = reinterpret_cast<__m256i*>(strip.sums + (p + i) * gemm::kPanel);
            _mm256_storeu_si256(to, sums[i][0]);
            _mm256_storeu_si256(to + 1, sums[i][1]);
        }
    }
}

}  // namespace lowbit::runtime
#endif
