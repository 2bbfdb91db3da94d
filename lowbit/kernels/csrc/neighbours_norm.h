// Batch norm of a few channels: read in all images for their sums, and again while the caches still hold them.
#pragma once
#include <cmath>
#include <cstring>

#include "bodies.h"
#include "neighbours.h"

namespace lowbit::neighbours {

// Four values, widened.
LOWBIT_INLINE void take_four(const float* from, Doubles& to) {
    Floats values;
    std::memcpy(&values, from, sizeof values);
    to = __builtin_convertvector(values, Doubles);
}

// Sums of pairs: of the first ones, and of the products. Of two floats, both are exact in double.
struct PairSums {
    Doubles firsts[kLanes / 4] = {}, products[kLanes / 4] = {};

    // Sixteen pairs at a time into sixteen sums of either kind; a pair at place i belongs to i mod 16.
    LOWBIT_INLINE void add(const float* x, const float* other, int64_t count) {
        // By name, since arrays would be written to memory in every turn.
        Doubles a = firsts[0], b = firsts[1], c = firsts[2], d = firsts[3];
        Doubles e = products[0], f = products[1], g = products[2], h = products[3];
        const auto sixteen = [&](const float* p, const float* q) LOWBIT_INLINE_LAMBDA {
            add_four(p, q, a, e);
            add_four(p + 4, q + 4, b, f);
            add_four(p + 8, q + 8, c, g);
            add_four(p + 12, q + 12, d, h);
        };
        int64_t at = 0;
        for (; at + kLanes <= count; at += kLanes) sixteen(x + at, other + at);
        if (at < count) {
            float rest[kLanes] = {}, other_rest[kLanes] = {};  // zeros change no sum
            std::memcpy(rest, x + at, size_t(count - at) * sizeof(float));
            std::memcpy(other_rest, other + at, size_t(count - at) * sizeof(float));
            sixteen(rest, other_rest);
        }
        firsts[0] = a, firsts[1] = b, firsts[2] = c, firsts[3] = d;
        products[0] = e, products[1] = f, products[2] = g, products[3] = h;
    }

    static LOWBIT_INLINE double total(const Doubles* parts) {
        const Doubles all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        return (all[0] + all[1]) + (all[2] + all[3]);
    }

  private:
    static LOWBIT_INLINE void add_four(const float* p, const float* q, Doubles& first, Doubles& product) {
        Doubles value, other;
        take_four(p, value);
        take_four(q, other);
        first += value;
        product += value * other;
    }
};

// A few channels that are done together, so that short rows of an image are read side by side.
struct Channels {
    int64_t first, count;
};

constexpr int64_t kMostChannels = 32;

// each(which one of the channels, image, where its pixels begin).
template <class Each>
LOWBIT_INLINE void rows_of(lowbit_layout layout, Channels channels, Each each) {
    for (int64_t image = 0; image < layout.outer; ++image) {
        for (int64_t k = 0; k < channels.count; ++k) {
            each(k, image, (image * layout.channels + channels.first + k) * layout.inner);
        }
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

LOWBIT_INLINE bool batch_norm_forward(const lowbit_batch_norm& of, Channels channels, float* y, float* mean,
                                      float* inverse, float* running_mean, float* running_variance,
                                      int16_t* multiples) {
    const lowbit_layout layout = of.layout;
    const double count = double(layout.outer * layout.inner);
    const float old = of.momentum, fresh = 1.0f - of.momentum;
    PairSums sums[kMostChannels];
    rows_of(layout, channels, [&](int64_t k, int64_t, int64_t at) LOWBIT_INLINE_LAMBDA {
        sums[k].add(of.x + at, of.x + at, layout.inner);
    });
    for (int64_t k = 0; k < channels.count; ++k) {
        const int64_t c = channels.first + k;
        const double middle = PairSums::total(sums[k].firsts) / count;
        const double spread = PairSums::total(sums[k].products) / count - middle * middle;
        const double variance = spread < 0 ? 0 : spread;  // NaN stays
        mean[c] = float(middle);
        inverse[c] = float(1 / std::sqrt(variance + double(of.epsilon)));
        running_mean[c] = running_mean[c] * old + mean[c] * fresh;
        running_variance[c] = running_variance[c] * old + float(variance) * fresh;
    }
    bool fits = multiples;
    rows_of(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const int64_t c = channels.first + k;
        const float centre = mean[c], shift = of.bias ? of.bias[c] : 0.0f;
        const float gain = of.weight ? of.weight[c] * inverse[c] : inverse[c];
        const float* __restrict from = of.x + at;
        float* __restrict to = y + at;
        for (int64_t i = 0; i < layout.inner; ++i) to[i] = (from[i] - centre) * gain + shift;
        fits = fits && to_multiples(from, of.scale[image * layout.channels + c], multiples + at, layout.inner);
    });
    return fits;
}

// `room` holds x of these channels of all images, where they are given as multiples.
LOWBIT_INLINE void batch_norm_backward(const lowbit_batch_norm& of, Channels channels, const int16_t* multiples,
                                       const float* mean, const float* inverse, const float* dy, float* dx,
                                       float* dweight, float* dbias, float* room) {
    const lowbit_layout layout = of.layout;
    const double count = double(layout.outer * layout.inner);
    const auto x_of = [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        return multiples ? room + (image * channels.count + k) * layout.inner : of.x + at;
    };
    PairSums sums[kMostChannels];
    rows_of(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        if (multiples) {
            const float scale = of.scale[image * layout.channels + channels.first + k];
            from_multiples(multiples + at, scale, room + (image * channels.count + k) * layout.inner, layout.inner);
        }
        sums[k].add(dy + at, x_of(k, image, at), layout.inner);
    });
    float common[kMostChannels], slope[kMostChannels];
    for (int64_t k = 0; k < channels.count; ++k) {
        const int64_t c = channels.first + k;
        const double sum = PairSums::total(sums[k].firsts);
        // Of dy * (x - mean): in double the difference loses nothing that a float could show.
        const double centred = PairSums::total(sums[k].products) - double(mean[c]) * sum;
        if (dweight) dweight[c] = float(centred * inverse[c]);
        if (dbias) dbias[c] = float(sum);
        common[k] = float(sum / count);
        slope[k] = float(centred / count * inverse[c] * inverse[c]);
    }
    if (!dx) return;
    rows_of(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const int64_t c = channels.first + k;
        const float centre = mean[c], gain = of.weight ? of.weight[c] * inverse[c] : inverse[c];
        const float shared = common[k], steep = slope[k];
        const float* __restrict from = x_of(k, image, at);
        const float* __restrict given = dy + at;
        float* __restrict to = dx + at;
        for (int64_t i = 0; i < layout.inner; ++i) to[i] = (given[i] - shared - (from[i] - centre) * steep) * gain;
    });
}

}  // namespace lowbit::neighbours
