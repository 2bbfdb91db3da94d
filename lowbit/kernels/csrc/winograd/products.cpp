// Micro-kernels of products of points, with AVX2: up to six rows times sixteen columns in twelve registers.
#include "winograd/products.h"

#include "winograd/transforms.h"

#include <cstring>
#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::winograd {
namespace {

// int16 elements from one row, and from one step, to the next.
struct ByRow {
    static constexpr int64_t row = 2 * kRun, step = 2;
};
struct ByStep {
    static constexpr int64_t row = 2, step = 2 * kPanel;
};

#if LOWBIT_X86

// Inline assembly, because compilers reassociate integer additions into trees, which need more registers than
// there are.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add(__m256i& sum, __m256i term) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term));
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load_word(const int16_t* from) {
    int32_t word;
    memcpy(&word, from, sizeof word);
    return _mm256_set1_epi32(word);
}

template <int kRows, class Order>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void one_step(const int16_t* words, const int16_t* columns,
                                               __m256i (&sums)[kRows][2]) {
    const __m256i low = load(columns), high = load(columns + kPanel);
    LOWBIT_UNROLLED
    for (int r = 0; r < kRows; r++) {
        const __m256i word = load_word(words + r * Order::row);
        add(sums[r][0], _mm256_madd_epi16(word, low));
        add(sums[r][1], _mm256_madd_epi16(word, high));
    }
}

// `groups` times kRows rows, from row `first` on.
template <int kRows, class Order>
LOWBIT_TARGET_AVX2 void multiply_rows(const PointProduct& of, int64_t first, int64_t groups) {
    const int16_t* rows = of.rows_from + first * Order::row;
    int32_t* to = of.sums + first * kPanel;
    const int64_t steps = of.steps, run = of.run;
    for (; groups; groups--, rows += kRows * Order::row, to += kRows * kPanel) {
        __m256i sums[kRows][2];
        LOWBIT_UNROLLED
        for (int r = 0; r < kRows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
        const int16_t *from = rows, *columns = of.columns_from;
        int64_t left = steps;
        for (; left >= kRun; left -= kRun, from += run, columns += 2 * kPanel * kRun) {
            LOWBIT_UNROLLED
            for (int step = 0; step < kRun; step++) {
                one_step<kRows, Order>(from + step * Order::step, columns + step * 2 * kPanel, sums);
            }
        }
        for (; left; left--, from += Order::step, columns += 2 * kPanel) {
            one_step<kRows, Order>(from, columns, sums);
        }
        LOWBIT_UNROLLED
        for (int r = 0; r < kRows; r++) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + r * kPanel), sums[r][0]);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + r * kPanel + 8), sums[r][1]);
        }
    }
}

// Rows in groups of nearly equal size: 16 are 6 + 5 + 5, not 6 + 6 + 4.
template <class Order>
LOWBIT_TARGET_AVX2 void multiply_avx2(const PointProduct& of) {
    constexpr int64_t kMost = 6;
    static void (*const kernels[kMost])(const PointProduct&, int64_t, int64_t) = {
        multiply_rows<1, Order>, multiply_rows<2, Order>, multiply_rows<3, Order>,
        multiply_rows<4, Order>, multiply_rows<5, Order>, multiply_rows<6, Order>};
    const int64_t groups = ceil_div(of.rows, kMost), fewer = of.rows / groups, more = of.rows % groups;
    if (more) kernels[fewer](of, 0, more);  // groups with one row more
    kernels[fewer - 1](of, more * (fewer + 1), groups - more);
}

const PointProducts kAvx2 = {multiply_avx2<ByRow>, multiply_avx2<ByStep>};

#endif

template <class Order>
void multiply_baseline(const PointProduct& of) {
    for (int64_t r = 0; r < of.rows; r++) {
        uint32_t sums[kPanel] = {};  // modulo 2^32
        for (int64_t step = 0; step < of.steps; step++) {
            const int16_t* words =
                of.rows_from + step / kRun * of.run + step % kRun * Order::step + r * Order::row;
            const int16_t* columns = of.columns_from + step * 2 * kPanel;
            for (int64_t i = 0; i < kPanel; i++) {
                sums[i] += static_cast<uint32_t>(words[0] * columns[2 * i]) +
                           static_cast<uint32_t>(words[1] * columns[2 * i + 1]);
            }
        }
        memcpy(of.sums + r * kPanel, sums, sizeof sums);
    }
}

const PointProducts kBaseline = {multiply_baseline<ByRow>, multiply_baseline<ByStep>};

}  // namespace

const PointProducts& point_products() {
#if LOWBIT_X86
    if (instruction_set() != InstructionSet::baseline) return kAvx2;
#endif
    return kBaseline;
}

}  // namespace lowbit::winograd
