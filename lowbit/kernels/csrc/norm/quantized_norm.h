// A batch norm with a quantizer before its activation, after it, or both: the loops over a few channels.
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

// The statistics of these channels, and the least and the largest y of each, in no particular order. Every
// operation of `Affine` keeps order, so that the least or the largest x gives the largest y, in the same
// bits.
template <AddPairs kAdd>
LOWBIT_INLINE void statistics_and_ends(const lowbit_batch_norm& of, Channels channels, Statistics to,
                                       float* ends) {
    PairSums sums[kMaxChannels];
    Extremes extremes[kMaxChannels];
    for_each_row(of.layout, channels, [&](int64_t k, int64_t, int64_t at) LOWBIT_INLINE_LAMBDA {
        const float* row = of.x + at;
        for_each_prefetched(row, of.layout.inner, [&](int64_t first, int64_t count) LOWBIT_INLINE_LAMBDA {
            kAdd(sums[k], row + first, row + first, count);
            extremes[k].add(row + first, count);
        });
    });
    finish_statistics(of, channels, sums, to);
    for (int64_t k = 0; k < channels.count; ++k) {
        const int64_t c = channels.first + k;
        const Affine normal(of, to.mean, to.inverse, c);
        ends[2 * c] = normal(float_of(ordered(extremes[k].least)));
        ends[2 * c + 1] = normal(float_of(ordered(extremes[k].most)));
    }
}

// Where forward writes; null for what is not wanted.
struct QuantizedRows {
    float* y;
    uint8_t* q;
    int8_t* clipped;
    uint8_t* bytes;
    int8_t* after_clipped;
    float* largest;
};

LOWBIT_INLINE int32_t mark_by(const MarkCalls& calls, const lowbit_observer& by, const float* x, float* y,
                              uint8_t* q, int8_t* clipped, int32_t count) {
    return calls.mark(x, y, q, clipped, *by.scale, by.alpha ? &by.bound : nullptr, count, by.grid);
}

LOWBIT_INLINE void activate(const float* x, int32_t activation, float* y, int64_t count) {
    if (activation == LOWBIT_HARDSWISH) return hardswish_forward(x, y, count);
    for (int64_t i = 0; i < count && activation == LOWBIT_RELU; ++i) y[i] = x[i] > 0 ? x[i] : 0.0f;
    for (int64_t i = 0; i < count && activation == LOWBIT_RELU6; ++i) y[i] = relu6(x[i]);
    for (int64_t i = 0; i < count && !activation; ++i) y[i] = x[i];
}

// At most kMarks values: quantized, activated, quantized. Returns how many were NaN when they came to the
// last quantizer.
LOWBIT_INLINE int32_t quantize_values(const MarkCalls& calls, const float* values,
                                      const lowbit_norm_quantizers& by, int32_t activation,
                                      const QuantizedRows& to, int32_t count) {
    float quantized[kMarks], activated[kMarks];
    float* const last = by.after ? activated : to.y;
    if (!by.before) {
        activate(values, activation, last, count);
    } else if (activation) {
        mark_by(calls, *by.before, values, quantized, to.q, to.clipped, count);
        activate(quantized, activation, last, count);
    } else {
        mark_by(calls, *by.before, values, last, to.q, to.clipped, count);
    }
    return by.after ? mark_by(calls, *by.after, activated, to.y, to.bytes, to.after_clipped, count) : 0;
}

template <class T>
LOWBIT_INLINE T* from_element(T* of, int64_t at) {
    return of ? of + at : nullptr;
}

// each(first row, rows, first element, elements) for pieces of at most kMarks elements of the rows of these
// channels in an image: several rows, or a piece of one. The pieces of a row do not depend on the channels.
template <class Each>
LOWBIT_INLINE void for_each_piece(lowbit_layout layout, Channels channels, int64_t image, Each each) {
    const int64_t inner = layout.inner, together = inner < kMarks ? kMarks / inner : 1;
    const int64_t start = (image * layout.channels + channels.first) * inner;
    for (int64_t k = 0; k < channels.count; k += together) {
        const int64_t rows = channels.count - k < together ? channels.count - k : together;
        for (int64_t first = 0; first < rows * inner; first += kMarks) {
            const int64_t left = rows * inner - first;
            each(k, rows, start + k * inner + first, left < kMarks ? left : kMarks);
        }
    }
}

LOWBIT_INLINE int64_t quantized_rows(const lowbit_batch_norm& of, Channels channels, const float* mean,
                                     const float* inverse, const lowbit_norm_quantizers& by,
                                     const QuantizedRows& to) {
    const int64_t inner = of.layout.inner;
    const MarkCalls calls = mark_calls();
    int64_t nan_count = 0;
    float values[kMarks];
    const auto quantize = [&](int64_t k, int64_t rows, int64_t at, int64_t count) LOWBIT_INLINE_LAMBDA {
        const int64_t length = count / rows;
        for (int64_t row = 0; row < rows; ++row) {
            const Affine normal(of, mean, inverse, channels.first + k + row);
            const float* x = of.x + at + row * length;
            float* normalized = values + row * length;
            for (int64_t i = 0; i < length; ++i) normalized[i] = normal(x[i]);
        }
        const QuantizedRows here = {from_element(to.y, at),
                                    from_element(to.q, at),
                                    from_element(to.clipped, at),
                                    from_element(to.bytes, at),
                                    from_element(to.after_clipped, at),
                                    nullptr};
        nan_count += quantize_values(calls, values, by, of.activation, here, int32_t(count));
    };
    for (int64_t image = 0; image < of.layout.outer; ++image) {
        for_each_piece(of.layout, channels, image, quantize);
        for (int64_t k = 0; to.largest && k < channels.count; ++k) {
            const int64_t row = image * of.layout.channels + channels.first + k;
            to.largest[row] = max_magnitude(to.y + row * inner, inner);
        }
    }
    return nan_count;
}

template <class Integer>
LOWBIT_INLINE void through_hardswish(const float* dy, const Integer* q, float scale, float* dx,
                                     int64_t count) {
    for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * hardswish_slope(float(q[i]) * scale);
}

// Where forward marked what its quantizers clipped, and the integers of the first.
struct QuantizedMarks {
    const uint8_t* q;
    const int8_t *clipped, *after_clipped;
};

// At most kMarks elements of dx: dy before the second quantizer and, where there is a first one, before the
// activation and that, too. Adds to the sums of the bounds' gradients, those that are wanted.
LOWBIT_INLINE void before_quantizers(const MarkCalls& calls, const float* dy, const QuantizedMarks& marks,
                                     const lowbit_norm_quantizers& by, int32_t activation, float* dx,
                                     double* sum, double* after_sum, int64_t count) {
    float let_through[kMarks], values[kMarks];
    const float* given = dy;
    double part = 0;
    if (by.after) {
        float* const to = by.before ? let_through : dx;
        calls.marked_grad(given, marks.after_clipped, to, after_sum ? &part : nullptr, count);
        if (after_sum) *after_sum += part;
        given = to;
    }
    if (!by.before) return;
    if (activation == LOWBIT_HARDSWISH) {
        if (by.before->grid.is_signed) {
            const int8_t* q = reinterpret_cast<const int8_t*>(marks.q);
            through_hardswish(given, q, *by.before->scale, values, count);
        } else {
            through_hardswish(given, marks.q, *by.before->scale, values, count);
        }
        given = values;
    }
    calls.marked_grad(given, marks.clipped, dx, sum ? &part : nullptr, count);
    if (sum) *sum += part;
}

LOWBIT_INLINE bool has_marks(const int8_t* clipped, int64_t count) {
    int8_t all = 0;
    for (int64_t i = 0; clipped && i < count; ++i) all |= clipped[i];
    return all != 0;
}

// The same for the rows of an image; `sums`, each if wanted, are those of its channels.
LOWBIT_INLINE void before_quantizers_of_image(const float* dy, const QuantizedMarks& marks,
                                              const lowbit_norm_quantizers& by, const lowbit_batch_norm& of,
                                              Channels channels, int64_t image, float* dx, double* sums,
                                              double* after_sums) {
    const MarkCalls calls = mark_calls();
    for_each_piece(
        of.layout, channels, image,
        [&](int64_t k, int64_t rows, int64_t at, int64_t count) LOWBIT_INLINE_LAMBDA {
            // Without a mark, rows need no sums of their own.
            const bool together = rows == 1 || !(has_marks(from_element(marks.clipped, at), count) ||
                                                 has_marks(from_element(marks.after_clipped, at), count));
            const int64_t length = together ? count : count / rows;
            for (int64_t first = 0; first < count; first += length, ++k) {
                const int64_t from = at + first, c = channels.first + k;
                const QuantizedMarks here = {from_element(marks.q, from), from_element(marks.clipped, from),
                                             from_element(marks.after_clipped, from)};
                before_quantizers(calls, dy + from, here, by, of.activation, dx + from,
                                  sums ? sums + c : nullptr, after_sums ? after_sums + c : nullptr, length);
            }
        });
}

}  // namespace lowbit::norm
