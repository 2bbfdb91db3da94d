// What a quantizer of training does in one call: observe a range, choose a scale, round to integers.
#include "quantize/bounds.h"
#include "quantize/ranges.h"

#include <atomic>
#include <cmath>

namespace lowbit {
namespace {

template <bool kBound>
LOWBIT_INLINE int32_t to_bytes_as(const float* x, uint8_t* q, float scale, float upper, int32_t count,
                                  lowbit_grid grid) {
    const float lower = lower_bound(upper, grid), s = kBound ? propagate_nan(upper, scale) : scale;
    int32_t nan_count = 0;
    for (int32_t i = 0; i < count; ++i) {
        float v = (kBound ? clip_to_bound(x[i], lower, upper) : x[i]) / s;
        nan_count += v != v;
        v = v > grid.lowest ? v : grid.lowest;  // NaN becomes `lowest` here and is set to 0 below
        v = v < grid.highest ? v : grid.highest;
        q[i] = uint8_t(nearest_integer(v));
    }
    for (int32_t i = 0; nan_count && i < count; ++i) {
        const float v = (kBound ? clip_to_bound(x[i], lower, upper) : x[i]) / s;
        if (v != v) q[i] = 0;
    }
    return nan_count;
}

LOWBIT_INLINE int32_t to_bytes(const float* x, uint8_t* q, float scale, const float* bound, int32_t count,
                               lowbit_grid grid) {
    return bound ? to_bytes_as<true>(x, q, scale, *bound, count, grid)
                 : to_bytes_as<false>(x, q, scale, 0.0f, count, grid);
}

}  // namespace
}  // namespace lowbit

namespace {

struct Loops {
    int32_t (*to_bytes)(const float* x, uint8_t* q, float scale, const float* bound, int32_t count,
                        lowbit_grid grid);
};

#define LOWBIT_OBSERVED(NAME, TARGET)                                                                   \
    namespace NAME {                                                                                    \
    TARGET int32_t to_bytes(const float* x, uint8_t* q, float scale, const float* bound, int32_t count, \
                            lowbit_grid grid) {                                                         \
        return lowbit::to_bytes(x, q, scale, bound, count, grid);                                       \
    }                                                                                                   \
    const Loops loops = {to_bytes};                                                                     \
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

int64_t lowbit_quantize_to_bytes(const float* x, void* q, const float* scale, const float* bound,
                                 int64_t count, lowbit_grid grid) {
    return lowbit::guarded([&]() -> int64_t {
        constexpr int64_t kChunk = 1 << 14;
        std::atomic<int64_t> nan_count{0};
        lowbit::parallel_ranges(lowbit::ceil_div(count, kChunk), kChunk, [&](int64_t first, int64_t last) {
            for (int64_t chunk = first; chunk < last; ++chunk) {
                const int64_t at = chunk * kChunk, left = count - at;
                const int32_t found =
                    LOWBIT_CHOOSE(loops).to_bytes(x + at, static_cast<uint8_t*>(q) + at, *scale, bound,
                                                  int32_t(left < kChunk ? left : kChunk), grid);
                if (found) nan_count += found;
            }
        });
        return nan_count;
    });
}

int64_t lowbit_to_dynamic_integers(const float* x, void* q, float* scales, const lowbit_axes* axes,
                                   const lowbit_levels* levels) {
    int64_t groups = 1;
    for (int axis = 0; axis < 4; ++axis) groups *= axes->owns[axis] ? axes->sizes[axis] : 1;
    int64_t status = lowbit_ranges(x, scales, axes, true);
    if (status >= 0) status = lowbit_scales(scales, scales, groups, levels->lowest, levels->highest);
    return status < 0 ? status : lowbit_to_integers(x, q, scales, axes, levels, nullptr, 0, 0);
}
