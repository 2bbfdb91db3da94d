// Batch norm of one channel: it is read in all images for its sums, and again while the caches still hold it.
#pragma once
#include <cmath>
#include <cstring>

#include "bodies.h"
#include "neighbours.h"

namespace lowbit::neighbours {

LOWBIT_INLINE void take_four(const float* from, Doubles& to) {
    Floats values;
    std::memcpy(&values, from, sizeof values);
    to = __builtin_convertvector(values, Doubles);
}

// Two sums, each in 16 parts; a value at place i of a row belongs to part i mod 16.
struct TwoSums {
    Doubles first[kLanes / 4] = {}, second[kLanes / 4] = {};

    // The sums of a row's x, and of x * x. Products of two floats are exact in double.
    LOWBIT_INLINE void add(const float* x, int64_t count) {
        by_sixteen(count, [&](int64_t at, int64_t left) LOWBIT_INLINE_LAMBDA {
            float last[kLanes];
            const float* from = whole(x + at, left, last);
            for (int i = 0; i < kLanes / 4; ++i) {
                Doubles value;
                take_four(from + 4 * i, value);
                first[i] += value;
                second[i] += value * value;
            }
        });
    }

    // Those of dy, and of dy * x.
    LOWBIT_INLINE void add(const float* dy, const float* x, int64_t count) {
        by_sixteen(count, [&](int64_t at, int64_t left) LOWBIT_INLINE_LAMBDA {
            float last_dy[kLanes], last_x[kLanes];
            const float* from_dy = whole(dy + at, left, last_dy);
            const float* from_x = whole(x + at, left, last_x);
            for (int i = 0; i < kLanes / 4; ++i) {
                Doubles given, value;
                take_four(from_dy + 4 * i, given);
                take_four(from_x + 4 * i, value);
                first[i] += given;
                second[i] += given * value;
            }
        });
    }

    static LOWBIT_INLINE double total(const Doubles* parts) {
        const Doubles all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        return (all[0] + all[1]) + (all[2] + all[3]);
    }

  private:
    template <class Step>
    static LOWBIT_INLINE void by_sixteen(int64_t count, Step step) {
        int64_t at = 0;
        for (; at + kLanes <= count; at += kLanes) step(at, kLanes);
        if (at < count) step(at, count - at);
    }

    // Sixteen values from here; behind a row's end are zeros, which change no sum.
    static LOWBIT_INLINE const float* whole(const float* from, int64_t left, float* last) {
        if (left == kLanes) return from;
        std::memset(last, 0, kLanes * sizeof(float));
        std::memcpy(last, from, size_t(left) * sizeof(float));
        return last;
    }
};

// each(image, where its pixels of the channel begin).
template <class Each>
LOWBIT_INLINE void images_of(lowbit_layout layout, int64_t channel, Each each) {
    for (int64_t image = 0; image < layout.outer; ++image) {
        each(image, (image * layout.channels + channel) * layout.inner);
    }
}

// Whether x is 16-bit integers times the scale, which then are written; a zero may lose its sign.
LOWBIT_INLINE bool to_multiples(const float* x, float scale, int16_t* multiples, int64_t count) {
    int32_t others = 0;
    for (int64_t i = 0; i < count; ++i) {
        const float wanted = x[i] / scale;
        const float whole = (wanted >= -32767.0f) & (wanted <= 32767.0f) ? nearest(wanted) : 0.0f;
        multiples[i] = int16_t(int32_t(whole));
        others |= whole * scale == x[i] ? 0 : 1;
    }
    return !others;
}

LOWBIT_INLINE void from_multiples(const int16_t* multiples, float scale, float* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] = float(multiples[i]) * scale;
}

LOWBIT_INLINE bool batch_norm_forward(const lowbit_batch_norm& of, int64_t c, float* y, float* mean, float* inverse,
                                      float* running_mean, float* running_variance, int16_t* multiples) {
    const lowbit_layout layout = of.layout;
    const double count = double(layout.outer * layout.inner);
    TwoSums sums;
    images_of(layout, c, [&](int64_t, int64_t at) LOWBIT_INLINE_LAMBDA { sums.add(of.x + at, layout.inner); });
    const double middle = TwoSums::total(sums.first) / count;
    const double spread = TwoSums::total(sums.second) / count - middle * middle;
    const double variance = spread < 0 ? 0 : spread;  // NaN stays
    mean[c] = float(middle);
    inverse[c] = float(1 / std::sqrt(variance + double(of.epsilon)));
    const float old = of.momentum, fresh = 1.0f - of.momentum;
    running_mean[c] = running_mean[c] * old + mean[c] * fresh;
    running_variance[c] = running_variance[c] * old + float(variance) * fresh;

    const float centre = mean[c], shift = of.bias ? of.bias[c] : 0.0f;
    const float gain = of.weight ? of.weight[c] * inverse[c] : inverse[c];
    bool fits = multiples;
    images_of(layout, c, [&](int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const float* from = of.x + at;
        float* to = y + at;
        for (int64_t i = 0; i < layout.inner; ++i) to[i] = (from[i] - centre) * gain + shift;
        const int64_t own = image * layout.channels + c;
        fits = fits && to_multiples(from, of.scale[own], multiples + at, layout.inner);
    });
    return fits;
}

// `room` holds the channel's x of all images, where they are given as multiples.
LOWBIT_INLINE void batch_norm_backward(const lowbit_batch_norm& of, int64_t c, const int16_t* multiples,
                                       const float* mean, const float* inverse, const float* dy, float* dx,
                                       float* dweight, float* dbias, float* room) {
    const lowbit_layout layout = of.layout;
    const double count = double(layout.outer * layout.inner);
    const auto x_of = [&](int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        return multiples ? room + image * layout.inner : of.x + at;
    };
    TwoSums sums;
    images_of(layout, c, [&](int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        if (multiples) {
            const float scale = of.scale[image * layout.channels + c];
            from_multiples(multiples + at, scale, room + image * layout.inner, layout.inner);
        }
        sums.add(dy + at, x_of(image, at), layout.inner);
    });
    const double sum = TwoSums::total(sums.first);
    // Of dy * (x - mean): in double the difference loses nothing that a float could show.
    const double centred = TwoSums::total(sums.second) - double(mean[c]) * sum;
    if (dweight) dweight[c] = float(centred * inverse[c]);
    if (dbias) dbias[c] = float(sum);
    if (!dx) return;
    const float centre = mean[c], gain = of.weight ? of.weight[c] * inverse[c] : inverse[c];
    const float common = float(sum / count);
    const float slope = float(centred / count * inverse[c] * inverse[c]);
    images_of(layout, c, [&](int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const float *from = x_of(image, at), *given = dy + at;
        float* to = dx + at;
        for (int64_t i = 0; i < layout.inner; ++i) {
            to[i] = (given[i] - common - (from[i] - centre) * slope) * gain;
        }
    });
}

}  // namespace lowbit::neighbours
