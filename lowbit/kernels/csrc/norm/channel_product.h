// Products of rows with one number each, and their gradients.
#pragma once
#include "common/cpu.h"

namespace lowbit::norm {

constexpr int64_t kRowsAtOnce = 8;  // sums of so many rows are independent: none waits for the one before it

LOWBIT_INLINE void channel_product(const float* x, const float* scale, float* y, int64_t rows,
                                   int64_t inner) {
    for (int64_t row = 0; row < rows; ++row) {
        const float factor = scale[row];
        for (int64_t i = 0; i < inner; ++i) y[row * inner + i] = x[row * inner + i] * factor;
    }
}

// sums[row] = the sum of a * b over the row, from its first element to its last.
template <int64_t kRows>
LOWBIT_INLINE void row_sums(const float* a, const float* b, float* sums, int64_t inner) {
    float found[kRows];
    LOWBIT_UNROLLED
    for (int64_t row = 0; row < kRows; ++row) found[row] = a[row * inner] * b[row * inner];
    for (int64_t i = 1; i < inner; ++i) {
        LOWBIT_UNROLLED
        for (int64_t row = 0; row < kRows; ++row) found[row] += a[row * inner + i] * b[row * inner + i];
    }
    for (int64_t row = 0; row < kRows; ++row) sums[row] = found[row];
}

LOWBIT_INLINE void channel_product_backward(const float* x, const float* scale, const float* dy, float* dx,
                                            float* dscale, int64_t rows, int64_t inner) {
    channel_product(dy, scale, dx, rows, inner);
    int64_t row = 0;
    for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) {
        row_sums<kRowsAtOnce>(dy + row * inner, x + row * inner, dscale + row, inner);
    }
    for (; row < rows; ++row) row_sums<1>(dy + row * inner, x + row * inner, dscale + row, inner);
}

}  // namespace lowbit::norm
