// What a quantizer of training does in one call: observe a range, choose a scale, round to integers.
#include "quantize/bounds.h"
#include "quantize/ranges.h"

#include <atomic>
#include <cmath>

namespace lowbit {
namespace {

constexpr int32_t kMarks = 256;  // values of which hardly any is beyond the bound: a multiple of kLanes

// At most kMarks values. Loops of one kind of output each, which compilers vectorize.
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
    if (!q) {
        for (int32_t i = 0; i < count; ++i) {
            y[i] = round_half_even(clip(quotients[i], grid.lowest, grid.highest)) * s;
        }
        return nan_count;
    }
    for (int32_t i = 0; i < count; ++i) {
        float v = quotients[i];
        v = v > grid.lowest ? v : grid.lowest;  // NaN becomes `lowest` here and is set to 0 below
        v = v < grid.highest ? v : grid.highest;
        q[i] = uint8_t(nearest_integer(v));
    }
    for (int32_t i = 0; nan_count && i < count; ++i) {
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

}  // namespace
}  // namespace lowbit

namespace {

struct Loops {
    int32_t (*mark)(const float* x, float* y, uint8_t* q, int8_t* clipped, float scale, const float* bound,
                    int32_t count, lowbit_grid grid);
    void (*marked_grad)(const float* dy, const int8_t* clipped, float* dx, double* sum, int64_t count);
};

#define LOWBIT_OBSERVED(NAME, TARGET)                                                                        \
    namespace NAME {                                                                                         \
    TARGET int32_t mark(const float* x, float* y, uint8_t* q, int8_t* clipped, float scale,                  \
                        const float* bound, int32_t count, lowbit_grid grid) {                               \
        return lowbit::mark(x, y, q, clipped, scale, bound, count, grid);                                    \
    }                                                                                                        \
    TARGET void marked_grad(const float* dy, const int8_t* clipped, float* dx, double* sum, int64_t count) { \
        lowbit::marked_grad(dy, clipped, dx, sum, count);                                                    \
    }                                                                                                        \
    const Loops loops = {mark, marked_grad};                                                                 \
    }

#if LOWBIT_X86
LOWBIT_OBSERVED(avx512, LOWBIT_TARGET_AVX512)
LOWBIT_OBSERVED(avx2, LOWBIT_TARGET_AVX2)
#endif
LOWBIT_OBSERVED(baseline, )

// A learned bound or scale as it is used; NaN stays NaN.
float at_least_smallest(float v) { return v < lowbit::kSmallestScale ? lowbit::kSmallestScale : v; }

float smaller_or_nan(float a, float b) { return a != a || b != b ? a + b : a < b ? a : b; }

}  // namespace

int lowbit_observe(const float* x, int64_t count, const float* alpha, lowbit_grid grid,
                   const lowbit_moving_average* average, float* bound, float* scale) {
    return lowbit::guarded([&] {
        const lowbit_axes axes = {{1, 1, 1, count}, {0, 0, 0, 0}};
        float range = 0;
        lowbit_ranges(x, &range, &axes, alpha ? grid.is_signed : 1);
        if (alpha) {
            *bound = at_least_smallest(*alpha);
            range = smaller_or_nan(range, *bound);
        }
        if (std::isfinite(range)) {
            *average->state = average->rate * *average->state + 1.0f;
            *average->accum = average->rate * *average->accum + range;
            *average->range = *average->accum / *average->state;
            ++*average->entered;
        } else {
            ++*average->left_out;
        }
        const int32_t lowest = int32_t(grid.lowest), highest = int32_t(grid.highest);
        *scale = lowbit::scale_of(*average->entered ? *average->range : range, grid.highest,
                                  lowbit::largest_scale(lowest, highest));
    });
}

int64_t lowbit_quantize_and_mark(const float* x, float* y, void* q, int8_t* clipped, const float* scale,
                                 const float* bound, int64_t count, lowbit_grid grid) {
    return lowbit::guarded([&]() -> int64_t {
        constexpr int64_t kChunk = 1 << 14;
        const Loops& own = LOWBIT_CHOOSE(loops);
        uint8_t* bytes = static_cast<uint8_t*>(q);
        std::atomic<int64_t> nan_count{0};
        lowbit::parallel_ranges(lowbit::ceil_div(count, kChunk), kChunk, [&](int64_t first, int64_t last) {
            for (int64_t chunk = first; chunk < last; ++chunk) {
                const int64_t at = chunk * kChunk, left = count - at;
                const int32_t found =
                    own.mark(x + at, y ? y + at : nullptr, bytes ? bytes + at : nullptr, clipped + at, *scale,
                             bound, int32_t(left < kChunk ? left : kChunk), grid);
                if (found) nan_count += found;
            }
        });
        return nan_count;
    });
}

int lowbit_marked_grad(const float* dy, const int8_t* clipped, float* dx, float* dbound, int64_t count) {
    return lowbit::guarded([&] {
        const Loops& own = LOWBIT_CHOOSE(loops);
        lowbit::for_each_channel_block(lowbit_layout{1, 1, count}, dbound,
                                       [&](lowbit::ChannelBlock block, int64_t at, int64_t, double* sum) {
                                           own.marked_grad(dy + at, clipped + at, dx ? dx + at : nullptr, sum,
                                                           block.inner);
                                       });
    });
}

int64_t lowbit_to_dynamic_integers(const float* x, void* q, float* scales, const lowbit_axes* axes,
                                   const lowbit_levels* levels, const float* largest, int32_t iterations,
                                   const lowbit_draw* draws, int32_t count_draws, uint64_t first) {
    int64_t groups = 1;
    for (int axis = 0; axis < 4; ++axis) groups *= axes->owns[axis] ? axes->sizes[axis] : 1;
    lowbit_axes rows = *axes;
    rows.sizes[2] = rows.sizes[3] = 1;
    int64_t status = 0;
    if (largest || !iterations)
        status = lowbit_ranges(largest ? largest : x, scales, largest ? &rows : axes, true);
    if (status >= 0 && iterations) {
        status = lowbit_mse_ranges(x, scales, axes, levels->lowest, levels->highest, iterations,
                                   largest != nullptr);
    }
    if (status >= 0) status = lowbit_scales(scales, scales, groups, levels->lowest, levels->highest);
    return status < 0 ? status : lowbit_to_integers(x, q, scales, axes, levels, draws, count_draws, first);
}
