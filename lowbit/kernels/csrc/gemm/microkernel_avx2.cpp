// Micro-kernels with AVX2: six pixels (or four) times sixteen channels in twelve (or eight) registers of
// sums.
//
// The additions are inline assembly: compilers reassociate integer additions into trees, which need more
// registers than there are and spill.
#include "gemm/microkernel.h"

#if LOWBIT_X86
#include <immintrin.h>
#include <string.h>

namespace lowbit::gemm {
namespace {

LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add16(__m256i& sum, __m256i term) {
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(term));
}
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add32(__m256i& sum, __m256i term) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term));
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void store(int32_t* to, __m256i value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load_word(const uint8_t* from) {
    int32_t bytes;
    memcpy(&bytes, from, 4);
    return _mm256_set1_epi32(bytes);
}

template <int kPixels>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void pixel_pointers(const Strip& strip, int64_t p,
                                                     const uint8_t* (&from)[kPixels]) {
    for (int i = 0; i < kPixels; i++) from[i] = strip.source + strip.pixel_offsets[p + i];
}

template <int kPixels>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void load_initial(const Strip& strip, __m256i (&sums)[kPixels][2]) {
    for (int i = 0; i < kPixels; i++) {
        sums[i][0] = load(strip.initial_sums);
        sums[i][1] = load(strip.initial_sums + 8);
    }
}

template <int kPixels>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void store_sums(int32_t* to, const __m256i (&sums)[kPixels][2]) {
    for (int i = 0; i < kPixels; i++) {
        store(to + i * kPanel, sums[i][0]);
        store(to + i * kPanel + 8, sums[i][1]);
    }
}

// Adds pairs of int16 sums to the int32 sums in memory, and clears them.
template <int kPixels>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void widen(int32_t* to, __m256i (&narrow)[kPixels][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < kPixels; i++) {
        for (int half = 0; half < 2; half++) {
            int32_t* sum = to + i * kPanel + 8 * half;
            store(sum, _mm256_add_epi32(load(sum), _mm256_madd_epi16(narrow[i][half], ones)));
            narrow[i][half] = _mm256_setzero_si256();
        }
    }
}

// Four products of bytes, or two of 16-bit integers, in each of eight int32.
struct MultiplyBytes {
    LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i operator()(__m256i a, __m256i b) const {
        return _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
    }
};
struct MultiplyWords {
    LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i operator()(__m256i a, __m256i b) const {
        return _mm256_madd_epi16(a, b);
    }
};

// A strip whose products are widened to int32 at once.
template <int kPixels, typename Multiply>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void accumulate32(const Strip& strip, Multiply multiply) {
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        pixel_pointers(strip, p, from);
        load_initial(strip, sums);
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                const __m256i low = load(panel), high = load(panel + 32);
                for (int i = 0; i < kPixels; i++) {
                    const __m256i a = load_word(from[i] + at);
                    add32(sums[i][0], multiply(a, low));
                    add32(sums[i][1], multiply(a, high));
                }
            }
        }
        store_sums(strip.sums + p * kPanel, sums);
    }
}

}  // namespace

LOWBIT_TARGET_AVX2 void run_int8_acc16_avx2(const Strip& strip) {
    constexpr int kPixels = 6;
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i narrow[kPixels][2];
        int32_t* to = strip.sums + p * kPanel;
        pixel_pointers(strip, p, from);
        load_initial(strip, narrow);
        store_sums(to, narrow);
        for (int i = 0; i < kPixels; i++) narrow[i][0] = narrow[i][1] = _mm256_setzero_si256();
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            for (int64_t end = at + 4 * strip.segments[s].steps; at != end; at += 4, panel += 64) {
                const __m256i low = load(panel), high = load(panel + 32);
                for (int i = 0; i < kPixels; i++) {
                    const __m256i a = load_word(from[i] + at);
                    add16(narrow[i][0], _mm256_maddubs_epi16(a, low));
                    add16(narrow[i][1], _mm256_maddubs_epi16(a, high));
                }
            }
            if (strip.segments[s].widen) widen(to, narrow);
        }
    }
}

LOWBIT_TARGET_AVX2 void run_int8_acc32_avx2(const Strip& strip) { accumulate32<4>(strip, MultiplyBytes()); }

LOWBIT_TARGET_AVX2 void run_int8_paired_avx2(const Strip& strip) {
    constexpr int kPixels = 4;
    const __m256i ones = _mm256_set1_epi16(1);
    const MultiplyBytes multiply;
    for (int64_t p = 0; p < strip.pixels; p += kPixels) {
        const uint8_t* from[kPixels];
        __m256i sums[kPixels][2];
        pixel_pointers(strip, p, from);
        load_initial(strip, sums);
        const uint8_t* panel = strip.panel;
        for (int64_t s = 0; s < strip.count; s++) {
            int64_t at = strip.segments[s].offset;
            const int64_t end = at + 4 * strip.segments[s].steps;
            for (; at + 4 < end; at += 8, panel += 128) {
                for (int half = 0; half < 2; half++) {
                    const __m256i first = load(panel + 32 * half), second = load(panel + 64 + 32 * half);
                    for (int i = 0; i < kPixels; i++) {
                        __m256i two = _mm256_maddubs_epi16(load_word(from[i] + at), first);
                        add16(two, _mm256_maddubs_epi16(load_word(from[i] + at + 4), second));
                        add32(sums[i][half], _mm256_madd_epi16(two, ones));
                    }
                }
            }
            if (at == end) continue;
            for (int i = 0; i < kPixels; i++) {
                const __m256i a = load_word(from[i] + at);
                add32(sums[i][0], multiply(a, load(panel)));
                add32(sums[i][1], multiply(a, load(panel + 32)));
            }
            panel += 64;
        }
        store_sums(strip.sums + p * kPanel, sums);
    }
}

LOWBIT_TARGET_AVX2 void run_int16_avx2(const Strip& strip) { accumulate32<6>(strip, MultiplyWords()); }

}  // namespace lowbit::gemm
#endif
