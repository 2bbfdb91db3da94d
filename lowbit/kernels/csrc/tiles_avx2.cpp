// The inner loops with AVX2: six pixels (or five) times sixteen channels in registers.
//
// The additions are written in assembly, since the compiler would reorder those of integers into trees, for
// which there are not enough registers.
#include "tiles.h"

#if LOWBIT_X86
#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX2_INLINE AVX2 inline __attribute__((always_inline))

namespace lowbit::conv {
namespace {

AVX2_INLINE void add16(__m256i& sum, __m256i term) { asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(term)); }
AVX2_INLINE void add32(__m256i& sum, __m256i term) { asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term)); }

AVX2_INLINE __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
AVX2_INLINE void store(int32_t* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }

AVX2_INLINE __m256i four_bytes(const uint8_t* from) {
    int32_t bytes;
    memcpy(&bytes, from, 4);
    return _mm256_set1_epi32(bytes);
}

template <int kPixels>
AVX2_INLINE void find(const Strip& strip, int64_t p, const uint8_t* (&from)[kPixels]) {
    for (int i = 0; i < kPixels; i++) from[i] = strip.source + strip.places[p + i];
}

template <int kPixels>
AVX2_INLINE void start(const Strip& strip, __m256i (&sums)[kPixels][2]) {
    for (int i = 0; i < kPixels; i++) {
        sums[i][0] = load(strip.start);
        sums[i][1] = load(strip.start + 8);
    }
}

template <int kPixels>
AVX2_INLINE void finish(int32_t* to, const __m256i (&sums)[kPixels][2]) {
    for (int i = 0; i < kPixels; i++) {
        store(to + i * kPanel, sums[i][0]);
        store(to + i * kPanel + 8, sums[i][1]);
    }
}

// Sums of int16 to those of int32 in memory, two neighbours to one.
template <int kPixels>
AVX2_INLINE void widen(int32_t* to, __m256i (&narrow)[kPixels][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < kPixels; i++) {
        for (int half = 0; half < 2; half++) {
            int32_t* sum = to + i * kPanel + 8 * half;
            store(sum, _mm256_add_epi32(load(sum), _mm256_madd_epi16(narrow[i][half], ones)));
            narrow[i][half] = _mm256_setzero_si256();
        }
    }
}

}  // namespace

AVX2 void run_narrow_avx2(const Strip& strip) {
    constexpr int kPixels = 6;
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i narrow[kPixels][2];
        int32_t* to = strip.sums + p * kPanel;
        find(strip, p, from);
        start(strip, narrow);
        finish(to, narrow);
        for (int i = 0; i < kPixels; i++) narrow[i][0] = narrow[i][1] = _mm256_setzero_si256();
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                const __m256i low = load(panel), high = load(panel + 32);
                for (int i = 0; i < kPixels; i++) {
                    const __m256i a = four_bytes(from[i] + at);
                    add16(narrow[i][0], _mm256_maddubs_epi16(a, low));
                    add16(narrow[i][1], _mm256_maddubs_epi16(a, high));
                }
            }
            if (strip.segments[s].widen) widen(to, narrow);
        }
    }
}

AVX2 void run_single_avx2(const Strip& strip) {
    constexpr int kPixels = 4;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        find(strip, p, from);
        start(strip, sums);
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                const __m256i low = load(panel), high = load(panel + 32);
                for (int i = 0; i < kPixels; i++) {
                    const __m256i a = four_bytes(from[i] + at);
                    add32(sums[i][0], _mm256_madd_epi16(_mm256_maddubs_epi16(a, low), ones));
                    add32(sums[i][1], _mm256_madd_epi16(_mm256_maddubs_epi16(a, high), ones));
                }
            }
        }
        finish(strip.sums + p * kPanel, sums);
    }
}

AVX2 void run_pairs_avx2(const Strip& strip) {
    constexpr int kPixels = 4;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        find(strip, p, from);
        start(strip, sums);
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            const int64_t end = at + 4 * strip.segments[s].steps;
            for (; at + 4 < end; at += 8, panel += 128) {
                for (int half = 0; half < 2; half++) {
                    const __m256i first = load(panel + 32 * half), second = load(panel + 64 + 32 * half);
                    for (int i = 0; i < kPixels; i++) {
                        __m256i two = _mm256_maddubs_epi16(four_bytes(from[i] + at), first);
                        add16(two, _mm256_maddubs_epi16(four_bytes(from[i] + at + 4), second));
                        add32(sums[i][half], _mm256_madd_epi16(two, ones));
                    }
                }
            }
            if (at == end) continue;
            for (int i = 0; i < kPixels; i++) {
                const __m256i a = four_bytes(from[i] + at);
                add32(sums[i][0], _mm256_madd_epi16(_mm256_maddubs_epi16(a, load(panel)), ones));
                add32(sums[i][1], _mm256_madd_epi16(_mm256_maddubs_epi16(a, load(panel + 32)), ones));
            }
            panel += 64;
        }
        finish(strip.sums + p * kPanel, sums);
    }
}

AVX2 void run_words_avx2(const Strip& strip) {
    constexpr int kPixels = 6;
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        find(strip, p, from);
        start(strip, sums);
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                const __m256i low = load(panel), high = load(panel + 32);
                for (int i = 0; i < kPixels; i++) {
                    const __m256i a = four_bytes(from[i] + at);
                    add32(sums[i][0], _mm256_madd_epi16(a, low));
                    add32(sums[i][1], _mm256_madd_epi16(a, high));
                }
            }
        }
        finish(strip.sums + p * kPanel, sums);
    }
}

}  // namespace lowbit::conv
#endif
