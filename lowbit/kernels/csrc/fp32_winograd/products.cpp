// Micro-kernels of fp32 products: a few rows times 16 columns, whose sums stay in registers.
#include "fp32_winograd/products.h"

#include <algorithm>
#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::fp32_winograd {
namespace {

#if LOWBIT_X86

template <int kRows>
LOWBIT_TARGET_AVX512 void rows_avx512(const Product& of, const float* a, const float* b, float* out) {
    __m512 sums[kRows];
    LOWBIT_UNROLLED
    for (int r = 0; r < kRows; r++) {
        sums[r] = of.adds ? _mm512_loadu_ps(out + r * of.out_row) : _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < of.depth; i++) {
        const __m512 columns = _mm512_loadu_ps(b + i * of.b_step);
        const float* at = a + i * of.a_step;
        LOWBIT_UNROLLED
        for (int r = 0; r < kRows; r++) {
            sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(at[r * of.a_row]), columns, sums[r]);
        }
    }
    LOWBIT_UNROLLED
    for (int r = 0; r < kRows; r++) _mm512_storeu_ps(out + r * of.out_row, sums[r]);
}

template <int kRows>
LOWBIT_TARGET_AVX2_FMA void rows_avx2(const Product& of, const float* a, const float* b, float* out) {
    __m256 low[kRows], high[kRows];
    LOWBIT_UNROLLED
    for (int r = 0; r < kRows; r++) {
        low[r] = of.adds ? _mm256_loadu_ps(out + r * of.out_row) : _mm256_setzero_ps();
        high[r] = of.adds ? _mm256_loadu_ps(out + r * of.out_row + 8) : _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < of.depth; i++) {
        const __m256 left = _mm256_loadu_ps(b + i * of.b_step),
                     right = _mm256_loadu_ps(b + i * of.b_step + 8);
        const float* at = a + i * of.a_step;
        LOWBIT_UNROLLED
        for (int r = 0; r < kRows; r++) {
            const __m256 factor = _mm256_broadcast_ss(at + r * of.a_row);
            low[r] = _mm256_fmadd_ps(factor, left, low[r]);
            high[r] = _mm256_fmadd_ps(factor, right, high[r]);
        }
    }
    LOWBIT_UNROLLED
    for (int r = 0; r < kRows; r++) {
        _mm256_storeu_ps(out + r * of.out_row, low[r]);
        _mm256_storeu_ps(out + r * of.out_row + 8, high[r]);
    }
}

#endif

template <int kRows>
void rows_baseline(const Product& of, const float* a, const float* b, float* out) {
    for (int r = 0; r < kRows; r++) {
        for (int64_t lane = 0; lane < kPanel; lane++) {
            float sum = of.adds ? out[r * of.out_row + lane] : 0.0f;
            for (int64_t i = 0; i < of.depth; i++) {
                sum = __builtin_fmaf(a[r * of.a_row + i * of.a_step], b[i * of.b_step + lane], sum);
            }
            out[r * of.out_row + lane] = sum;
        }
    }
}

using Rows = void (*)(const Product& of, const float* a, const float* b, float* out);

// Micro-kernels of 1, 2, ... rows; the last one is used as often as it fits.
struct MicroKernels {
    int64_t most;
    Rows rows[16];
};

#if LOWBIT_X86
const MicroKernels kAvx512 = {
    16,
    {rows_avx512<1>, rows_avx512<2>, rows_avx512<3>, rows_avx512<4>, rows_avx512<5>, rows_avx512<6>,
     rows_avx512<7>, rows_avx512<8>, rows_avx512<9>, rows_avx512<10>, rows_avx512<11>, rows_avx512<12>,
     rows_avx512<13>, rows_avx512<14>, rows_avx512<15>, rows_avx512<16>}};
const MicroKernels kAvx2 = {
    6, {rows_avx2<1>, rows_avx2<2>, rows_avx2<3>, rows_avx2<4>, rows_avx2<5>, rows_avx2<6>}};
#endif
const MicroKernels kBaseline = {1, {rows_baseline<1>}};

const MicroKernels& chosen() {
#if LOWBIT_X86
    if (instruction_set() >= InstructionSet::avx512) return kAvx512;
    if (has_fused_multiply_add()) return kAvx2;
#endif
    return kBaseline;
}

}  // namespace

bool has_fused_multiply_add() {
#if LOWBIT_X86
    return instruction_set() >= InstructionSet::avx2 && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

void multiply(const Product& of) {
    const MicroKernels& own = chosen();
    // Rows in groups of nearly equal size: 16 are 6 + 5 + 5, not 6 + 6 + 4.
    const int64_t groups = ceil_div(of.rows, own.most);
    for (int64_t panel = 0; panel < of.panels; panel++) {
        int64_t row = 0;
        for (int64_t group = 0; group < groups; group++) {
            const int64_t count = (of.rows - row) / (groups - group);
            own.rows[count - 1](of, of.a + row * of.a_row, of.b + panel * of.b_panel,
                                of.out + row * of.out_row + panel * of.out_panel);
            row += count;
        }
    }
}

}  // namespace lowbit::fp32_winograd
