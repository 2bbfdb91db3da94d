// Rounding with one scale that marks what was clipped, and the gradients from these marks; the average of
// ranges that gives the scale. observed.cpp and norm/quantized_norm.h compile the loops.
#pragma once
#include "quantize/bounds.h"

namespace lowbit {

// Enters the range of a batch, before it is clipped to alpha, and writes `by`'s bound and scale.
void observe_range(float range, lowbit_observer& by);

constexpr int32_t kMarks = 256;  // values of which hardly any is beyond the bound: a multiple of kLanes

// At most kMarks values: `y`, `q` or both. Loops of one kind of output each, which compilers vectorize.
template <bool kBound>
LOWBIT_INLINE int32_t mark_some(const float* __restrict x, float* __restrict y, uint8_t* __restrict q,
                                int8_t* __restrict clipped, float s, float lower, float upper, int32_t count,
                                lowbit_grid grid) {
    const float lowest = grid.lowest - 0.5f, highest = grid.highest + 0.5f;
    float quotients[kMarks];
    int32_t is_clipped = 0, nan_count = 0;
    for (int32_t i = 0; i < count; ++i) {
        const float v = (kBound ? clip_to_bound(x[i], lower, upper) : x[i]) / s;
        quotients[i] = v;
        is_clipped |= !(v >= lowest) | !(v <= highest);  // also NaN
        if (kBound) is_clipped |= (x[i] < lower) | (x[i] > upper);
    }
    if (!is_clipped) {
        for (int32_t i = 0; i < count; ++i) clipped[i] = 0;
    } else {
        const int32_t if_below = grid.is_signed ? -1 : 2;
        for (int32_t i = 0; i < count; ++i) {
            const float v = quotients[i];
            int32_t mark = 0;
            if (kBound) {
                mark = x[i] < lower ? if_below : mark;
                mark = x[i] > upper ? 1 : mark;
            }
            mark = v >= lowest ? mark : 2;
            clipped[i] = int8_t(v <= highest ? mark : 2);
            nan_count += v != v;
        }
    }
    for (int32_t i = 0; y && i < count; ++i) {
        y[i] = round_half_even(clip(quotients[i], grid.lowest, grid.highest)) * s;
    }
    for (int32_t i = 0; q && i < count; ++i) {
        float v = quotients[i];
        v = v > grid.lowest ? v : grid.lowest;  // NaN becomes `lowest` here and is set to 0 below
        v = v < grid.highest ? v : grid.highest;
        q[i] = uint8_t(nearest_integer(v));
    }
    for (int32_t i = 0; q && nan_count && i < count; ++i) {
        if (quotients[i] != quotients[i]) q[i] = 0;
    }
    return nan_count;
}

template <bool kBound>
LOWBIT_INLINE int32_t mark_as(const float* x, float* y, uint8_t* q, int8_t* clipped, float scale, float upper,
                              int32_t count, lowbit_grid grid) {
    const float lower = lower_bound(upper, grid), s = kBound ? propagate_nan(upper, scale) : scale;
    int32_t nan_count = 0;
    for (int32_t first = 0; first < count; first += kMarks) {
        const int32_t left = count - first, now = left < kMarks ? left : kMarks;
        nan_count += mark_some<kBound>(x + first, y ? y + first : y, q ? q + first : q, clipped + first, s,
                                       lower, upper, now, grid);
    }
    return nan_count;
}

LOWBIT_INLINE int32_t mark(const float* x, float* y, uint8_t* q, int8_t* clipped, float scale,
                           const float* bound, int32_t count, lowbit_grid grid) {
    return bound ? mark_as<true>(x, y, q, clipped, scale, *bound, count, grid)
                 : mark_as<false>(x, y, q, clipped, scale, 0.0f, count, grid);
}

// dx, which may be dy, and the sum of dbound, each if wanted.
LOWBIT_INLINE void marked_grad(const float* dy, const int8_t* clipped, float* dx, double* sum,
                               int64_t count) {
    PartialSums sums;
    float terms[kMarks];
    for (int64_t first = 0; first < count; first += kMarks) {
        const int64_t left = count - first, now = left < kMarks ? left : kMarks;
        const float* from = dy + first;
        const int8_t* marks = clipped + first;
        int8_t all = 0;
        for (int64_t i = 0; i < now; ++i) all |= marks[i];
        if (sum && all & 1) {  // 1 or -1: otherwise, all terms are 0
            for (int64_t i = 0; i < now; ++i) {
                const int32_t mark = marks[i];
                const float below = mark == -1 ? -from[i] : 0.0f;
                terms[i] = mark == 1 ? from[i] : below;
            }
            sums.add(terms, now);
        }
        if (!dx || (!all && dx == dy)) continue;
        float* to = dx + first;
        LOWBIT_INDEPENDENT_ITERATIONS
        for (int64_t i = 0; i < now; ++i) to[i] = marks[i] == 0 ? from[i] : 0.0f;
    }
    if (sum) *sum = sums.total();
}

}  // namespace lowbit
