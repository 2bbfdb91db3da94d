// A quantizer between a batch norm and its activation: the loops over a few channels.
#pragma once
#include "norm/batch_norm.h"
#include "quantize/marks.h"

#include <initializer_list>

namespace lowbit::norm {

// Integers in the order of the floats that they stand for, which is its own inverse: compilers vectorize
// least and largest integers. NaN is beyond Inf.
LOWBIT_INLINE int32_t ordered(int32_t bits) { return bits ^ (bits >> 31 & INT32_MAX); }

// The least and the largest value so far, as `ordered` integers.
struct Extremes {
    int32_t least = INT32_MAX, most = INT32_MIN;

    LOWBIT_INLINE void add(const float* x, int64_t count) {
        const FloatBits* bits = reinterpret_cast<const FloatBits*>(x);
        int32_t low = least, high = most;
        for (int64_t i = 0; i < count; ++i) {
            const int32_t value = ordered(bits[i]);
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        least = low, most = high;
    }
};

// The statistics of these channels, and the largest magnitude, or, not signed, the largest of 0 and y. Every
// operation of `Affine` keeps order, so that the least or the largest x gives the largest y, in the same
// bits.
template <AddPairs kAdd>
LOWBIT_INLINE float statistics_and_range(const lowbit_batch_norm& of, Channels channels, Statistics to,
                                         bool is_signed) {
    PairSums sums[kMaxChannels];
    Extremes ends[kMaxChannels];
    for_each_row(of.layout, channels, [&](int64_t k, int64_t, int64_t at) LOWBIT_INLINE_LAMBDA {
        kAdd(sums[k], of.x + at, of.x + at, of.layout.inner);
        ends[k].add(of.x + at, of.layout.inner);
    });
    finish_statistics(of, channels, sums, to);
    float range = 0;
    for (int64_t k = 0; k < channels.count; ++k) {
        const Affine normal(of, to.mean, to.inverse, channels.first + k);
        for (const int32_t end : {ends[k].least, ends[k].most}) {
            const float y = normal(float_of(ordered(end))), size = is_signed ? __builtin_fabsf(y) : y;
            range = range != range || size <= range ? range : size;  // NaN stays
        }
    }
    return range;
}

// A row of y: normalized, quantized and activated.
LOWBIT_INLINE void quantized_row(const float* x, float* y, uint8_t* q, int8_t* clipped, const Affine& normal,
                                 const lowbit_observer& by, int32_t activation, int64_t count) {
    float normalized[kMarks], values[kMarks];
    for (int64_t first = 0; first < count; first += kMarks) {
        const int64_t left = count - first, now = left < kMarks ? left : kMarks;
        float* to = activation == LOWBIT_HARDSWISH ? values : y + first;
        for (int64_t i = 0; i < now; ++i) normalized[i] = normal(x[first + i]);
        mark(normalized, to, q ? q + first : nullptr, clipped + first, *by.scale,
             by.alpha ? &by.bound : nullptr, int32_t(now), by.grid);
        if (activation == LOWBIT_HARDSWISH) hardswish_forward(values, y + first, now);
    }
}

LOWBIT_INLINE void quantized_rows(const lowbit_batch_norm& of, Channels channels, const float* mean,
                                  const float* inverse, const lowbit_observer& by, float* y, uint8_t* q,
                                  int8_t* clipped, float* largest) {
    for_each_row(of.layout, channels, [&](int64_t k, int64_t, int64_t at) LOWBIT_INLINE_LAMBDA {
        quantized_row(of.x + at, y + at, q ? q + at : nullptr, clipped + at,
                      Affine(of, mean, inverse, channels.first + k), by, of.activation, of.layout.inner);
        if (largest) largest[at / of.layout.inner] = max_magnitude(y + at, of.layout.inner);
    });
}

template <class Integer>
LOWBIT_INLINE void through_hardswish(const float* dy, const Integer* q, float scale, float* dx,
                                     int64_t count) {
    for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * hardswish_slope(float(q[i]) * scale);
}

// dx = dy before the activation and the quantizer; adds to the sum of the bound's gradient, if wanted.
LOWBIT_INLINE void before_quantizer(const float* dy, const uint8_t* q, const int8_t* clipped,
                                    const lowbit_observer& by, int32_t activation, float* dx, double* sum,
                                    int64_t count) {
    float values[kMarks];
    for (int64_t first = 0; first < count; first += kMarks) {
        const int64_t left = count - first, now = left < kMarks ? left : kMarks;
        const float* given = dy + first;
        if (activation == LOWBIT_HARDSWISH) {
            if (by.grid.is_signed) {
                through_hardswish(given, reinterpret_cast<const int8_t*>(q) + first, *by.scale, values, now);
            } else {
                through_hardswish(given, q + first, *by.scale, values, now);
            }
            given = values;
        }
        double part = 0;
        marked_grad(given, clipped + first, dx + first, sum ? &part : nullptr, now);
        if (sum) *sum += part;
    }
}

}  // namespace lowbit::norm
