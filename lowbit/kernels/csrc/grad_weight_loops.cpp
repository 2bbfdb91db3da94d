// The loops around the weight's gradient, compiled for each instruction set: see variants.cpp for how.
#include "grad_weight_loops.h"

#include "grad_weight_pack.h"
#include "grad_weight_sums.h"

#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::weight {

namespace {

#define LOWBIT_WEIGHT_LOOPS(NAME, TARGET, PUT_VALUES)                                                                \
    namespace NAME {                                                                                                 \
    TARGET void pack_x(const WeightPlan& p, const uint8_t* x, int64_t channel, uint8_t* out) {                       \
        weight::pack_x(p, x, channel, out);                                                                          \
    }                                                                                                                \
    TARGET void pack_dy(const WeightPlan& p, const uint8_t* dy, int64_t panel, uint8_t* out) {                       \
        weight::pack_dy(p, dy, panel, out);                                                                          \
    }                                                                                                                \
    TARGET void sum_dy(const WeightPlan& p, const uint8_t* dy, int64_t* out) { weight::sum_dy(p, dy, out); }         \
    TARGET void empty(int32_t* narrow, int64_t* wide, const int64_t* shift, int64_t rows, int64_t width) {           \
        weight::empty(narrow, wide, shift, rows, width);                                                             \
    }                                                                                                                \
    template <class T>                                                                                               \
    TARGET void scale(T* sums, const int64_t* shift, const float* scale_dy, const float* scale_x, float* values,     \
                      bool add, int64_t channels, int64_t taps, int64_t width) {                                     \
        weight::scale<T>(sums, shift, scale_dy, scale_x, values, add, channels, taps, width);                        \
    }                                                                                                                \
    template <class T>                                                                                               \
    TARGET void put(const T* from, int64_t rows, int64_t width, T* to, int64_t to_output, int64_t outputs) {         \
        weight::put<T>(from, rows, width, to, to_output, outputs);                                                   \
    }                                                                                                                \
    const WeightLoops loops = {pack_x,         pack_dy,        sum_dy,     empty,                                    \
                               scale<int32_t>, scale<int64_t>, PUT_VALUES, put<int64_t>};                            \
    }

#if LOWBIT_X86

#define LOWBIT_AVX2 __attribute__((target("avx2")))

// 8 rows of 8 values to 8 outputs: two turned in pairs, then in fours, then in halves.
LOWBIT_AVX2 LOWBIT_INLINE void put_8_by_8(const float* from, int64_t width, float* to, int64_t to_output) {
    __m256 rows[8], pairs[8], fours[8];
    for (int i = 0; i < 8; ++i) rows[i] = _mm256_loadu_ps(from + i * width);
    for (int i = 0; i < 4; ++i) {
        pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * to_output, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_output, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
    }
}

LOWBIT_AVX2 void put_by_8(const float* from, int64_t rows, int64_t width, float* to, int64_t to_output,
                          int64_t outputs) {
    const int64_t whole_rows = rows / 8 * 8, whole_outputs = outputs / 8 * 8;
    for (int64_t o = 0; o < whole_outputs; o += 8) {
        for (int64_t row = 0; row < whole_rows; row += 8) {
            put_8_by_8(from + row * width + o, width, to + o * to_output + row, to_output);
        }
    }
    weight::put(from + whole_rows * width, rows - whole_rows, width, to + whole_rows, to_output, whole_outputs);
    const int64_t left = outputs - whole_outputs;
    weight::put(from + whole_outputs, rows, width, to + whole_outputs * to_output, to_output, left);
}

LOWBIT_WEIGHT_LOOPS(avx2, LOWBIT_AVX2, put_by_8)

#endif
LOWBIT_WEIGHT_LOOPS(baseline, , put<float>)

}  // namespace

const WeightLoops& weight_loops(InstructionSet set) {
#if LOWBIT_X86
    if (set != InstructionSet::baseline) return avx2::loops;
#endif
    (void)set;
    return baseline::loops;
}

}  // namespace lowbit::weight
