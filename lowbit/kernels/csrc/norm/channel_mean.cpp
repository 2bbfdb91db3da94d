// The mean of every row of `inner` elements, as global average pooling takes it, and its gradient; see
// norm.h.
#include "common/cpu.h"
#include "common/grouped_axes.h"
#include "norm/norm.h"

namespace {

constexpr int64_t kRowsAtOnce = 8;  // sums of so many rows are independent: none waits for the one before it

// From the first element to the last, in fp32.
template <int64_t kRows>
LOWBIT_INLINE void row_means(const float* x, float* y, int64_t inner) {
    float sums[kRows] = {};
    for (int64_t i = 0; i < inner; ++i) {
        LOWBIT_UNROLLED
        for (int64_t row = 0; row < kRows; ++row) sums[row] += x[row * inner + i];
    }
    for (int64_t row = 0; row < kRows; ++row) y[row] = sums[row] / float(inner);
}

LOWBIT_INLINE void means_of_rows(const float* x, float* y, int64_t rows, int64_t inner) {
    int64_t row = 0;
    for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) {
        row_means<kRowsAtOnce>(x + row * inner, y + row, inner);
    }
    for (; row < rows; ++row) row_means<1>(x + row * inner, y + row, inner);
}

template <bool kAdd>
LOWBIT_INLINE void spread_over_rows(const float* dy, float* dx, int64_t rows, int64_t inner) {
    const float share = float(1.0 / double(inner));
    for (int64_t row = 0; row < rows; ++row) {
        const float each = share * dy[row] + 0.0f;  // Paddle adds it to zeros
        float* to = dx + row * inner;
        for (int64_t i = 0; i < inner; ++i) to[i] = kAdd ? to[i] + each : each;
    }
}

struct Loops {
    void (*means)(const float* x, float* y, int64_t rows, int64_t inner);
    void (*spread)(const float* dy, float* dx, int64_t rows, int64_t inner);
    void (*add)(const float* dy, float* dx, int64_t rows, int64_t inner);
};

#define LOWBIT_CHANNEL_MEAN(NAME, TARGET)                                         \
    namespace NAME {                                                              \
    TARGET void means(const float* x, float* y, int64_t rows, int64_t inner) {    \
        means_of_rows(x, y, rows, inner);                                         \
    }                                                                             \
    TARGET void spread(const float* dy, float* dx, int64_t rows, int64_t inner) { \
        spread_over_rows<false>(dy, dx, rows, inner);                             \
    }                                                                             \
    TARGET void add(const float* dy, float* dx, int64_t rows, int64_t inner) {    \
        spread_over_rows<true>(dy, dx, rows, inner);                              \
    }                                                                             \
    const Loops loops = {means, spread, add};                                     \
    }

#if LOWBIT_X86
LOWBIT_CHANNEL_MEAN(avx512, LOWBIT_TARGET_AVX512)
LOWBIT_CHANNEL_MEAN(avx2, LOWBIT_TARGET_AVX2)
#endif
LOWBIT_CHANNEL_MEAN(baseline, )

}  // namespace

int lowbit_channel_mean_forward(const float* x, float* y, int64_t rows, int64_t inner) {
    return lowbit::guarded([&] {
        const Loops& own = LOWBIT_CHOOSE(loops);
        lowbit::parallel_ranges(rows, inner, [&](int64_t first, int64_t last) {
            own.means(x + first * inner, y + first, last - first, inner);
        });
    });
}

int lowbit_channel_mean_backward(const float* dy, float* dx, int64_t rows, int64_t inner) {
    return lowbit::guarded([&] {
        const Loops& own = LOWBIT_CHOOSE(loops);
        lowbit::parallel_ranges(rows, inner, [&](int64_t first, int64_t last) {
            own.spread(dy + first, dx + first * inner, last - first, inner);
        });
    });
}

int lowbit_channel_mean_add(const float* dy, float* dx, int64_t rows, int64_t inner) {
    return lowbit::guarded([&] {
        const Loops& own = LOWBIT_CHOOSE(loops);
        lowbit::parallel_ranges(rows, inner, [&](int64_t first, int64_t last) {
            own.add(dy + first, dx + first * inner, last - first, inner);
        });
    });
}
