// Micro-kernels for deployed weights that gemm/ does not have; gemm/microkernel.h explains strips and panels.
#include "common/cpu.h"
#include "runtime/conv_step.h"

#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::runtime {

void run_nibbles_portable(const gemm::Strip& strip) {
    for (int64_t p = 0; p < strip.pixels; p++) {
        const uint8_t* panel = strip.panel;
        int32_t sums[gemm::kPanel];
        memcpy(sums, strip.initial_sums, sizeof sums);
        for (int64_t s = 0; s < strip.count; s++) {
            const uint8_t* from = strip.source + strip.pixel_offsets[p] + strip.segments[s].offset;
            for (int64_t step = 0; step < strip.segments[s].steps; step++, from += 4, panel += 32) {
                for (int64_t i = 0; i < 32; i++) {
                    sums[i / 4] += from[i % 4] * ((panel[i] & 15) - 8);
                    sums[i / 4 + 8] += from[i % 4] * ((panel[i] >> 4) - 8);
                }
            }
        }
        memcpy(strip.sums + p * gemm::kPanel, sums, sizeof sums);
    }
}

#if LOWBIT_X86
namespace {

LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add32(__m256i& sum, __m256i term) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term));  // see gemm/microkernel_avx2.cpp
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add16(__m256i& sum, __m256i term) {
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(term));
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

}  // namespace

// Bytes of source and weights are widened to int16 in registers: exact for any 8-bit weights.
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
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                __m256i weights[4];  // first two inputs of channels 0-7 and 8-15, then the last two
                for (int i = 0; i < 4; i++) {
                    const __m128i* two = reinterpret_cast<const __m128i*>(panel + 16 * i);
                    weights[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(two));
                }
                for (int i = 0; i < kPixels; i++) {
                    int32_t word;
                    memcpy(&word, from[i] + at, 4);
                    const __m256i bytes = _mm256_set1_epi32(word);
                    const __m256i first = _mm256_shuffle_epi8(bytes, first_two);
                    const __m256i last = _mm256_shuffle_epi8(bytes, last_two);
                    add32(sums[i][0], _mm256_madd_epi16(first, weights[0]));
                    add32(sums[i][1], _mm256_madd_epi16(first, weights[1]));
                    add32(sums[i][0], _mm256_madd_epi16(last, weights[2]));
                    add32(sums[i][1], _mm256_madd_epi16(last, weights[3]));
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

LOWBIT_TARGET_AVX2 void add_extras_avx2(const gemm::Strip& strip, const int32_t* steps, int64_t count,
                                        const int64_t* offsets, const uint8_t* weights) {
    constexpr int kPixels = 4;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        __m256i* to = reinterpret_cast<__m256i*>(strip.sums + p * gemm::kPanel);
        for (int i = 0; i < kPixels; i++) {
            from[i] = strip.source + strip.pixel_offsets[p + i];
            sums[i][0] = _mm256_loadu_si256(to + 2 * i);
            sums[i][1] = _mm256_loadu_si256(to + 2 * i + 1);
        }
        for (int64_t s = 0; s < count; s++) {
            const __m256i low = load(weights + s * 64), high = load(weights + s * 64 + 32);
            for (int i = 0; i < kPixels; i++) {
                int32_t word;
                memcpy(&word, from[i] + offsets[steps[s]], 4);
                const __m256i a = _mm256_set1_epi32(word);
                add32(sums[i][0], _mm256_madd_epi16(_mm256_maddubs_epi16(a, low), ones));
                add32(sums[i][1], _mm256_madd_epi16(_mm256_maddubs_epi16(a, high), ones));
            }
        }
        for (int i = 0; i < kPixels; i++) {
            _mm256_storeu_si256(to + 2 * i, sums[i][0]);
            _mm256_storeu_si256(to + 2 * i + 1, sums[i][1]);
        }
    }
}

// Two weights per byte; sums in int16 until a segment widens, as in gemm/.
LOWBIT_TARGET_AVX2 void run_nibbles_avx2(const gemm::Strip& strip) {
    constexpr int kPixels = 6;
    const __m256i nibble = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8), ones = _mm256_set1_epi16(1);
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i narrow[kPixels][2];
        __m256i* sums = reinterpret_cast<__m256i*>(strip.sums + p * gemm::kPanel);
        for (int i = 0; i < kPixels; i++) {
            from[i] = strip.source + strip.pixel_offsets[p + i];
            for (int half = 0; half < 2; half++) {
                narrow[i][half] = _mm256_setzero_si256();
                _mm256_storeu_si256(sums + 2 * i + half,
                                    load(reinterpret_cast<const uint8_t*>(strip.initial_sums + 8 * half)));
            }
        }
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 32) {
                const __m256i both = load(panel);
                const __m256i low = _mm256_sub_epi8(_mm256_and_si256(both, nibble), eight);
                const __m256i high =
                    _mm256_sub_epi8(_mm256_and_si256(_mm256_srli_epi16(both, 4), nibble), eight);
                for (int i = 0; i < kPixels; i++) {
                    int32_t word;
                    memcpy(&word, from[i] + at, 4);
                    const __m256i a = _mm256_set1_epi32(word);
                    add16(narrow[i][0], _mm256_maddubs_epi16(a, low));
                    add16(narrow[i][1], _mm256_maddubs_epi16(a, high));
                }
            }
            if (!strip.segments[s].widen) continue;
            for (int i = 0; i < kPixels; i++) {
                for (int half = 0; half < 2; half++) {
                    __m256i* sum = sums + 2 * i + half;
                    const __m256i wide = _mm256_madd_epi16(narrow[i][half], ones);
                    _mm256_storeu_si256(sum, _mm256_add_epi32(_mm256_loadu_si256(sum), wide));
                    narrow[i][half] = _mm256_setzero_si256();
                }
            }
        }
    }
}

namespace {

template <int kPanels>
LOWBIT_TARGET_AVX512VNNI LOWBIT_INLINE void run_nibbles_avx512(const gemm::Strip& strip) {
    constexpr int kPixels = 8;
    const __m512i nibble = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m512i sums[kPixels][kPanels];
        for (int i = 0; i < kPixels; i++) {
            from[i] = strip.source + strip.pixel_offsets[p + i];
            for (int j = 0; j < kPanels; j++) {
                sums[i][j] = _mm512_loadu_si512(strip.initial_sums + j * gemm::kPanel);
            }
        }
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 32) {
                __m512i weights[kPanels];
                for (int j = 0; j < kPanels; j++) {
                    const __m256i both =
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + j * strip.panel_bytes));
                    const __m512i halves = _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(both),
                                                                    _mm256_srli_epi16(both, 4), 1);
                    weights[j] = _mm512_sub_epi8(_mm512_and_si512(halves, nibble), eight);
                }
                for (int i = 0; i < kPixels; i++) {
                    int32_t word;
                    memcpy(&word, from[i] + at, 4);
                    const __m512i a = _mm512_set1_epi32(word);
                    for (int j = 0; j < kPanels; j++) {
                        sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], a, weights[j]);
                    }
                }
            }
        }
        for (int i = 0; i < kPixels; i++) {
            for (int j = 0; j < kPanels; j++) {
                _mm512_storeu_si512(strip.sums + j * gemm::kPanelSums + (p + i) * gemm::kPanel, sums[i][j]);
            }
        }
    }
}

}  // namespace

LOWBIT_TARGET_AVX512VNNI void run_nibbles_avx512vnni(const gemm::Strip& strip) {
    run_nibbles_avx512<1>(strip);
}

LOWBIT_TARGET_AVX512VNNI void run_nibbles_two_panels_avx512vnni(const gemm::Strip& strip) {
    run_nibbles_avx512<2>(strip);
}

#endif

}  // namespace lowbit::runtime
