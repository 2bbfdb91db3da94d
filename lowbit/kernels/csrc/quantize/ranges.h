// The range of a group's values: the largest magnitude, the range of least squared error, and the scale for a
// range.
#pragma once
#include "common/grouped_axes.h"
#include "quantize/rounding.h"

#include <cmath>

namespace lowbit {

typedef int32_t __attribute__((may_alias)) FloatBits;

// Positive floats are ordered like their bits, with NaN above Inf: an integer maximum handles all of them.
LOWBIT_INLINE int32_t magnitude_bits(int32_t bits, int32_t is_signed) {
    const int32_t size = bits & 0x7fffffff;
    const bool counts = (is_signed != 0) | (bits >= 0) | (size > 0x7f800000);
    return counts ? size : 0;
}

constexpr float kLargestFloat = 0x1.fffffep127f;
constexpr float kSmallestScale = 0x1p-126f;

LOWBIT_INLINE int32_t max_int(int32_t a, int32_t b) { return a < b ? b : a; }

constexpr int64_t kStretch = 1024, kAhead = 2048;

// of(first, count) for consecutive pieces of a long row. Prefetches further ahead than processors do by
// themselves: without it, reading takes longer than computing.
template <class Of>
LOWBIT_INLINE void for_each_prefetched(const float* row, int64_t length, Of of) {
    for (int64_t first = 0; first < length; first += kStretch) {
        const int64_t left = length - first, count = left < kStretch ? left : kStretch;
        if (count == kStretch) {
            for (int64_t i = 0; i < kStretch; i += 16) __builtin_prefetch(row + first + kAhead + i, 0, 2);
        }
        of(first, count);
    }
}

// The largest magnitude, as bits, of the rows of one group.
LOWBIT_INLINE int32_t largest_of_rows(const float* x, const GroupRows& rows, int32_t is_signed) {
    int32_t most = 0;
    for (int64_t row = 0; row < rows.count; ++row) {
        const float* from = x + rows.at + row * rows.stride;
        for_each_prefetched(from, rows.length, [&](int64_t first, int64_t count) LOWBIT_INLINE_LAMBDA {
            const FloatBits* bits = reinterpret_cast<const FloatBits*>(from + first);
            for (int64_t i = 0; i < count; ++i) most = max_int(most, magnitude_bits(bits[i], is_signed));
        });
    }
    return most;
}

// The same for every group of a block, over some of its repeats.
LOWBIT_INLINE void largest_of_block(const float* x, const PeriodicBlock& block, int64_t first, int64_t last,
                                    int32_t is_signed, int32_t* most) {
    const FloatBits* bits = reinterpret_cast<const FloatBits*>(x);
    for (int64_t i = 0; i < block.width; ++i) most[i] = 0;
    block.for_each_repeat(first, last, [&](int64_t at, int64_t count) LOWBIT_INLINE_LAMBDA {
        const FloatBits* start = bits + at;
        for (int64_t i = 0; i < count; ++i) most[i] = max_int(most[i], magnitude_bits(start[i], is_signed));
    });
    block.reduce(most, max_int);
}

// The largest scale with which the value of every integer is finite.
inline float largest_scale(int32_t lowest, int32_t highest) {
    const int32_t steps = max_int(-lowest, highest);
    const float scale = float(double(kLargestFloat) / steps);
    return double(scale) * steps <= kLargestFloat ? scale : std::nextafter(scale, 0.0f);
}

LOWBIT_INLINE float scale_of(float range, float highest, float largest) {
    const float scale = clip(range / highest, kSmallestScale, largest);
    return (range > 0 ? scale : 1.0f) + range * 0.0f;
}

// The iteration of the observer mse (lowbit/numerics) for one grid.
struct MseSearch {
    float lowest, highest, largest, to_fixed, from_fixed;
    float limit = 0x1p30f;  // a variable, since of a constant compilers make slower comparisons

    MseSearch(int32_t low, int32_t high)
        : lowest(float(low)), highest(float(high)), largest(largest_scale(low, high)) {
        int bits = 0;
        while (max_int(-low, high) > 1 << bits) ++bits;
        to_fixed = float(1 << (30 - 2 * bits));
        from_fixed = 1.0f / to_fixed;
    }

    LOWBIT_INLINE float scale(float range) const { return scale_of(range, highest, largest); }

    // x in units of the initial scale as a fixed-point number; not finite: anything.
    LOWBIT_INLINE int32_t fixed_point(float v) const {
        v *= to_fixed;
        v = v < limit ? v : limit;
        return int32_t(__builtin_rintf(v > -limit ? v : -limit));
    }

    LOWBIT_INLINE int32_t integer(float v) const {
        v = v < highest ? v : highest;
        return nearest_integer(v > lowest ? v : lowest);
    }

    // The range that fits best, or the previous one; `changed` tells whether it moved.
    LOWBIT_INLINE float next(float start, float before, int64_t along, int64_t square, bool* changed) const {
        const float ratio = float(double(along) / double(square > 1 ? square : 1)) * from_fixed;
        float best = scale(start) * highest * ratio;
        best = best > kLargestFloat ? kLargestFloat : best;
        const float range = best > 0 ? best : before;
        *changed = __builtin_fabsf(range - before) > before * 1e-6f;
        return range;
    }
};

// Sums of i * q (31 bits) and q * q (17 bits) in int32, exact for up to kFlush terms: products are split into
// halves.
constexpr int64_t kFlush = 1 << 14;

struct Projection {
    int64_t along = 0, square = 0;

    LOWBIT_INLINE void add(const float* x, const GroupRows& rows, float start, float scale,
                           const MseSearch& mse) {
        for (int64_t row = 0; row < rows.count; ++row) {
            const float* from = x + rows.at + row * rows.stride;
            for_each_prefetched(from, rows.length, [&](int64_t first, int64_t count) LOWBIT_INLINE_LAMBDA {
                if (start == scale) {
                    add_some(from + first, int(count), start, scale, mse, true);
                } else {
                    add_some(from + first, int(count), start, scale, mse, false);
                }
            });
        }
    }

  private:
    LOWBIT_INLINE void add_some(const float* x, int count, float start, float scale, const MseSearch& mse,
                                bool same) {
        int32_t high = 0, low = 0, squares = 0;
        for (int i = 0; i < count; ++i) {
            const float v = x[i] / start;
            const int32_t fixed = mse.fixed_point(v), q = mse.integer(same ? v : x[i] / scale);
            const int32_t product = int32_t(uint32_t(fixed) * uint32_t(q));
            high += product >> 16;
            low += product & 0xffff;
            squares += q * q;
        }
        along += int64_t(high) * 65536 + low;
        square += squares;
    }
};

// The same for every group of a block at once, over some of its repeats.
struct Projections {
    int32_t high[kBlockWidth], low[kBlockWidth], squares[kBlockWidth];
    int64_t along[kBlockWidth], square[kBlockWidth];

    LOWBIT_INLINE void run(const float* x, const PeriodicBlock& block, int64_t first, int64_t last,
                           const float* start, const float* scale, const MseSearch& mse) {
        const int width = int(block.width);
        for (int i = 0; i < width; ++i) along[i] = square[i] = 0;
        clear(width);
        int64_t terms = 0;
        block.for_each_repeat(first, last, [&](int64_t at, int64_t count) LOWBIT_INLINE_LAMBDA {
            add(x + at, int(count), start, scale, mse);
            if (++terms % kFlush == 0) flush(width);
        });
        flush(width);
        const auto sum = [](int64_t a, int64_t b) LOWBIT_INLINE_LAMBDA { return a + b; };
        block.reduce(along, sum);
        block.reduce(square, sum);
    }

  private:
    LOWBIT_INLINE void clear(int width) {
        for (int i = 0; i < width; ++i) high[i] = low[i] = squares[i] = 0;
    }

    LOWBIT_INLINE void flush(int width) {
        for (int i = 0; i < width; ++i) along[i] += int64_t(high[i]) * 65536 + low[i];
        for (int i = 0; i < width; ++i) square[i] += squares[i];
        clear(width);
    }

    LOWBIT_INLINE void add(const float* x, int count, const float* start, const float* scale,
                           const MseSearch& mse) {
        for (int i = 0; i < count; ++i) {
            const float v = x[i] / start[i], w = start == scale ? v : x[i] / scale[i];
            const int32_t fixed = mse.fixed_point(v), q = mse.integer(w);
            const int32_t product = int32_t(uint32_t(fixed) * uint32_t(q));
            high[i] += product >> 16;
            low[i] += product & 0xffff;
            squares[i] += q * q;
        }
    }
};

}  // namespace lowbit
