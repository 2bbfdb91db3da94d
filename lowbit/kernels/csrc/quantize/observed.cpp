// What a quantizer of training does in one call: observe a range, choose a scale, round to integers.
#include "quantize/marks.h"
#include "quantize/ranges.h"

#include <atomic>
#include <cmath>

namespace {

// A learned bound or scale as it is used; NaN stays NaN.
float at_least_smallest(float v) { return v < lowbit::kSmallestScale ? lowbit::kSmallestScale : v; }

float smaller_or_nan(float a, float b) { return a != a || b != b ? a + b : a < b ? a : b; }

}  // namespace

namespace lowbit {

void observe_range(float range, lowbit_observer& by) {
    lowbit_moving_average& average = by.average;
    if (by.alpha) {
        by.bound = at_least_smallest(*by.alpha);
        range = smaller_or_nan(range, by.bound);
    }
    if (std::isfinite(range)) {
        *average.state = average.rate * *average.state + 1.0f;
        *average.accum = average.rate * *average.accum + range;
        *average.range = *average.accum / *average.state;
        ++*average.entered;
    } else {
        ++*average.left_out;
    }
    const int32_t lowest = int32_t(by.grid.lowest), highest = int32_t(by.grid.highest);
    *by.scale =
        scale_of(*average.entered ? *average.range : range, by.grid.highest, largest_scale(lowest, highest));
}

}  // namespace lowbit

int64_t lowbit_observe_and_mark(const float* x, float* y, void* q, int8_t* clipped, int64_t count,
                                lowbit_observer* by) {
    return lowbit::guarded([&]() -> int64_t {
        const lowbit_axes axes = {{1, 1, 1, count}, {0, 0, 0, 0}};
        float range = 0;
        lowbit::checked(lowbit_ranges(x, &range, &axes, by->alpha ? by->grid.is_signed : 1));
        lowbit::observe_range(range, *by);
        return lowbit_quantize_and_mark(x, y, q, clipped, by->scale, by->alpha ? &by->bound : nullptr, count,
                                        by->grid);
    });
}

int64_t lowbit_quantize_and_mark(const float* x, float* y, void* q, int8_t* clipped, const float* scale,
                                 const float* bound, int64_t count, lowbit_grid grid) {
    return lowbit::guarded([&]() -> int64_t {
        constexpr int64_t kChunk = 1 << 14;
        const lowbit::MarkCalls own = lowbit::mark_calls();
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
        const lowbit::MarkCalls own = lowbit::mark_calls();
        lowbit::for_each_channel_block(lowbit_layout{1, 1, count}, dbound,
                                       [&](lowbit::ChannelBlock block, int64_t at, int64_t, double* sum) {
                                           own.marked_grad(dy + at, clipped + at, dx ? dx + at : nullptr, sum,
                                                           block.inner);
                                       });
    });
}

int64_t lowbit_to_dynamic_integers(const float* x, void* q, float* scales, const lowbit_axes* axes,
                                   const lowbit_levels* levels, const float* largest, int32_t iterations,
                                   float ratio, const lowbit_draw* draws, int32_t count_draws,
                                   uint64_t first) {
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
    for (int64_t i = 0; status >= 0 && !iterations && i < groups; ++i) scales[i] *= ratio;
    if (status >= 0) status = lowbit_scales(scales, scales, groups, levels->lowest, levels->highest);
    return status < 0 ? status : lowbit_to_integers(x, q, scales, axes, levels, draws, count_draws, first);
}
