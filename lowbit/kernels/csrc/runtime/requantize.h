// What follows a product's sums, in one pass: scale and bias, activation, residual sum, rounding to bytes.
//
// runtime.h has the formulas. Sums come in strips: [pixels][16 channels].
#pragma once
#include "common/cpu.h"
#include "runtime/byte_table.h"

#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::runtime {

constexpr int64_t kChannels = 16;

struct Epilogue {
    std::vector<float> scale, bias;  // by channel, whole panels
    Unary first;                     // identity, clamp, hard_swish or hard_sigmoid
    bool has_middle = false;         // rounded to a grid before the residual sum
    Grid middle;
    bool has_residual = false;
    Grid residual;
    Unary second;
    Grid out;
    bool has_table = false;  // a function of the rounded byte
    ByteTable table;

    // Found by prepare(), once the rest is known:
    Reciprocal out_reciprocal, middle_reciprocal;
    // Without a residual sum, an activation that clamps becomes bounds of the byte. `is_short`: that is all
    // there is, and no value is too large for an int32.
    bool is_short = false;
    uint8_t lowest = 0, highest = 255;

    // `largest` is a bound of the sums' magnitude.
    void prepare(double largest);
};

// Whether an epilogue can compute the function.
inline bool is_simple(const Unary& unary) {
    return unary.function == Function::identity || unary.function == Function::clamp ||
           unary.function == Function::hard_swish || unary.function == Function::hard_sigmoid;
}

struct StripOutput {
    int64_t pixels, channel;  // the first channel of the strip, for scales and biases
    int64_t written;          // bytes that may be written per pixel, at most 16
    const int64_t* offsets;   // of the pixels in `to`
    uint8_t* to;              // the first channel
    const int64_t* residual_offsets;
    const uint8_t* residual;  // may be read 16 bytes at a time
};

void requantize(const Epilogue& epilogue, const int32_t* sums, const StripOutput& out);

// v of the first activation, in fp32: channel c of pixel p to to[offsets[p] + c * plane].
void dequantize_sums(const Epilogue& epilogue, const int32_t* sums, int64_t pixels, int64_t channel,
                     int64_t channels, const int64_t* offsets, int64_t plane, float* to);

#if LOWBIT_X86
// Int32 to bytes, with a zero point, between two bounds.
struct BytePack {
    LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE BytePack(int zero_point, uint8_t least, uint8_t most)
        : zero(_mm256_set1_epi16(static_cast<int16_t>(zero_point))),
          lowest(_mm256_set1_epi8(static_cast<char>(least))),
          highest(_mm256_set1_epi8(static_cast<char>(most))) {}
    // Sixteen.
    LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE __m128i operator()(const __m256i (&steps)[2]) const {
        const __m256i words =
            _mm256_adds_epi16(_mm256_permute4x64_epi64(_mm256_packs_epi32(steps[0], steps[1]), 0xd8), zero);
        const __m128i bytes =
            _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        return _mm_min_epu8(_mm_max_epu8(bytes, _mm256_castsi256_si128(lowest)),
                            _mm256_castsi256_si128(highest));
    }
    // Two times sixteen.
    LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE __m256i operator()(const __m256i (&a)[2],
                                                            const __m256i (&b)[2]) const {
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        const __m256i bytes = _mm256_packus_epi16(_mm256_adds_epi16(_mm256_packs_epi32(a[0], a[1]), zero),
                                                  _mm256_adds_epi16(_mm256_packs_epi32(b[0], b[1]), zero));
        return _mm256_permutevar8x32_epi32(_mm256_min_epu8(_mm256_max_epu8(bytes, lowest), highest), order);
    }
    __m256i zero, lowest, highest;
};
#endif

}  // namespace lowbit::runtime
