// The backward pass of batch_norm.h for a few channels: all images are read for two sums, and then again for
// dx. x and dy before the activation are computed each time, which costs less than keeping them in memory.
#pragma once
#include "norm/batch_norm.h"

namespace lowbit::norm {

// What the pass reads: the arguments of lowbit_batch_norm_backward.
struct Backward {
    lowbit_batch_norm of;
    const uint8_t* bits;
    const lowbit_multiples* multiples;
    const float *mean, *inverse, *dy;
    const uint8_t* places;

    // The same dx, from dy before the activation, where that has been written.
    Backward after_activation(const float* given) const {
        Backward same = *this;
        same.of.activation = LOWBIT_NO_ACTIVATION;
        same.of.pool = nullptr;
        same.bits = nullptr;
        same.dy = given;
        return same;
    }

    LOWBIT_INLINE float gain(int64_t c) const { return of.weight ? of.weight[c] * inverse[c] : inverse[c]; }
};

// What the sums say about dx = (dy - common - (x - mean) * slope) * gain, for each of the channels.
struct ChannelTerms {
    float *common, *slope;
};

// Calls of(x) with x(i), element i of a row that begins at element `at`.
template <class Of>
LOWBIT_INLINE void with_x(const Backward& in, int64_t c, int64_t image, int64_t at, Of of) {
    if (!in.multiples) {
        const float* x = in.of.x + at;
        return of([=](int64_t i) LOWBIT_INLINE_LAMBDA { return x[i]; });
    }
    const float scale = in.of.scale[image * in.of.layout.channels + c];
    const uint16_t* low = in.multiples->low + at;
    if (const int8_t* high = in.multiples->high) {
        high += at;
        return of([=](int64_t i) LOWBIT_INLINE_LAMBDA { return multiple<true>(low, high, i) * scale; });
    }
    of([=](int64_t i) LOWBIT_INLINE_LAMBDA { return multiple<false>(low, nullptr, i) * scale; });
}

// Calls of(given) with given(i, x), dy before the activation of an element that is x. `scratch` holds two
// rows: what a max-pool or the bits of a ReLU let through is written there first.
template <class Of>
LOWBIT_INLINE void with_given(const Backward& in, int64_t c, int64_t at, float* scratch, Of of) {
    const lowbit_batch_norm& norm = in.of;
    const int64_t inner = norm.layout.inner;
    const float* dy = in.dy + at;
    if (norm.pool) {
        const int64_t pooled = at / inner * norm.pool->out_height * norm.pool->out_width;
        max_pool_backward(in.dy + pooled, in.places + pooled, scratch + inner, *norm.pool);
        dy = scratch + inner;
    }
    if (in.bits) {
        relu_backward(dy, in.bits + bits_at(at, inner), scratch, inner);
        dy = scratch;
    }
    if (!norm.activation || in.bits) {
        return of([=](int64_t i, float) LOWBIT_INLINE_LAMBDA { return dy[i]; });
    }
    const float centre = in.mean[c], gain = in.gain(c), shift = norm.bias ? norm.bias[c] : 0.0f;
    // Without a residual, x tells the slope.
    const auto scaled_by = [&](auto slope) LOWBIT_INLINE_LAMBDA {
        of([=](int64_t i, float x)
               LOWBIT_INLINE_LAMBDA { return dy[i] * slope((x - centre) * gain + shift); });
    };
    if (norm.activation == LOWBIT_RELU6) {
        scaled_by([](float z) LOWBIT_INLINE_LAMBDA { return relu6_slope(z); });
    } else if (norm.activation == LOWBIT_HARDSWISH) {
        scaled_by([](float z) LOWBIT_INLINE_LAMBDA { return hardswish_slope(z); });
    } else {
        scaled_by([](float z) LOWBIT_INLINE_LAMBDA { return z > 0 ? 1.0f : 0.0f; });
    }
}

// dweight, dbias and dother, each if wanted, and the terms of dx. `scratch` holds four rows. Before an image
// is read, prepare(image) is called, which may write the dy of these channels.
template <AddPairs kAdd, class Prepare>
LOWBIT_INLINE void backward_sums(const Backward& in, Channels channels, float* dweight, float* dbias,
                                 float* dother, ChannelTerms terms, float* scratch, Prepare prepare) {
    const lowbit_layout layout = in.of.layout;
    const double count = double(layout.outer * layout.inner);
    float *x_row = scratch + 2 * layout.inner, *given_row = x_row + layout.inner;
    PairSums sums[kMaxChannels];
    for_each_row(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const int64_t c = channels.first + k;
        if (k == 0) prepare(image);
        float* to = dother ? dother + at : given_row;
        if (!in.of.pool && (!in.of.activation || in.bits)) {
            if (in.bits) relu_backward(in.dy + at, in.bits + bits_at(at, layout.inner), to, layout.inner);
            const float* x = row_of_x(in.of, in.multiples, c, image, at, x_row);
            return kAdd(sums[k], in.bits ? to : in.dy + at, x, layout.inner);
        }
        with_x(in, c, image, at, [&](auto x) LOWBIT_INLINE_LAMBDA {
            with_given(in, c, at, scratch, [&](auto given) LOWBIT_INLINE_LAMBDA {
                LOWBIT_INDEPENDENT_ITERATIONS
                for (int64_t i = 0; i < layout.inner; ++i) {
                    const float value = x(i);
                    if (in.multiples) x_row[i] = value;
                    to[i] = given(i, value);
                }
            });
        });
        kAdd(sums[k], to, in.multiples ? x_row : in.of.x + at, layout.inner);
    });
    for (int64_t k = 0; k < channels.count; ++k) {
        const int64_t c = channels.first + k;
        const double sum = PairSums::total(sums[k].firsts), inverse = in.inverse[c];
        // The sum of dy * (x - mean): the difference in double loses nothing that a float could show.
        const double centred = PairSums::total(sums[k].products) - double(in.mean[c]) * sum;
        if (dweight) dweight[c] = float(centred * inverse);
        if (dbias) dbias[c] = float(sum);
        terms.common[k] = float(sum / count);
        terms.slope[k] = float(centred / count * inverse * inverse);
    }
}

// dx of these channels of one image, row after row, and the largest magnitude of each row if wanted. It may
// be written over x: element i is read before. `scratch` holds two rows.
LOWBIT_INLINE void backward_rows(const Backward& in, Channels channels, int64_t image, ChannelTerms terms,
                                 float* dx, float* largest, float* scratch) {
    const int64_t inner = in.of.layout.inner;
    for (int64_t k = 0; k < channels.count; ++k) {
        const int64_t c = channels.first + k, at = (image * in.of.layout.channels + c) * inner;
        const float centre = in.mean[c], gain = in.gain(c), shared = terms.common[k], steep = terms.slope[k];
        float* to = dx + k * inner;
        int32_t most = 0;
        with_x(in, c, image, at, [&](auto x) LOWBIT_INLINE_LAMBDA {
            with_given(in, c, at, scratch, [&](auto given) LOWBIT_INLINE_LAMBDA {
                int32_t found = 0;
                LOWBIT_INDEPENDENT_ITERATIONS
                for (int64_t i = 0; i < inner; ++i) {
                    const float value = x(i);
                    const float result = (given(i, value) - shared - (value - centre) * steep) * gain;
                    to[i] = result;
                    found = max_int(found, magnitude_bits(bits_of(result), true));
                }
                most = found;
            });
        });
        if (largest) largest[k] = float_of(most);
    }
}

}  // namespace lowbit::norm
