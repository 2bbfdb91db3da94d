// ReLU, which saves one bit per element for backward; and batch norm of a few channels with an activation:
// all images are read for the sums, then again while they are in the cache. Its backward pass is in
// batch_norm_backward.h.
#pragma once
#include "norm/max_pool.h"
#include "norm/norm.h"
#include "norm/pair_sums.h"
#include "quantize/ranges.h"

#include <cmath>
#include <cstring>
#if LOWBIT_X86
#include <emmintrin.h>
#endif

namespace lowbit::norm {

// Packs flags, bytes of 0 or 1, to bits, lowest first; `count` is a multiple of 8.
LOWBIT_INLINE void pack_flags(const uint8_t* flags, uint8_t* bits, int count) {
    for (int i = 0; i < count; i += 8) {
        uint64_t eight;
        std::memcpy(&eight, flags + i, sizeof eight);
        bits[i / 8] =
            uint8_t((eight * 0x0102040810204080u) >> 56);  // the multiplication moves flag i to bit 56 + i
    }
}

// y, and the flags of eight elements as bits.
LOWBIT_INLINE uint8_t relu_of_eight(const float* x, float* y) {
#if LOWBIT_X86
    int flags = 0;
    for (int half = 0; half < 2; ++half) {
        const __m128 value = _mm_loadu_ps(x + 4 * half), above = _mm_cmpgt_ps(value, _mm_setzero_ps());
        _mm_storeu_ps(y + 4 * half, _mm_and_ps(value, above));
        flags |= _mm_movemask_ps(above) << 4 * half;
    }
    return uint8_t(flags);
#else
    uint8_t flags[8], bits = 0;
    for (int i = 0; i < 8; ++i) {
        flags[i] = x[i] > 0;
        y[i] = x[i] > 0 ? x[i] : 0.0f;
    }
    pack_flags(flags, &bits, 8);
    return bits;
#endif
}

LOWBIT_INLINE void relu_forward(const float* x, float* y, uint8_t* bits, int64_t count) {
    const int64_t whole = count / 8, rest = count % 8;
    for (int64_t byte = 0; byte < whole; ++byte) bits[byte] = relu_of_eight(x + byte * 8, y + byte * 8);
    if (rest) {
        float last[8] = {}, last_y[8];
        std::memcpy(last, x + whole * 8, size_t(rest) * sizeof(float));
        bits[whole] = relu_of_eight(last, last_y);
        std::memcpy(y + whole * 8, last_y, size_t(rest) * sizeof(float));
    }
}

// The factors, 0 or 1, for the flags of four elements.
struct Factors {
    float of[16][4];

    constexpr Factors() : of() {
        for (int flags = 0; flags < 16; ++flags) {
            for (int i = 0; i < 4; ++i) of[flags][i] = float(flags >> i & 1);
        }
    }
};
constexpr Factors kFactors;

LOWBIT_INLINE void times_flags(const float* dy, int flags, float* dx) {
    Floats given, factors;
    std::memcpy(&given, dy, sizeof given);
    std::memcpy(&factors, kFactors.of[flags], sizeof factors);
    given *= factors;
    std::memcpy(dx, &given, sizeof given);
}

LOWBIT_INLINE void relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count) {
    const int64_t whole = count / 8;
    for (int64_t byte = 0; byte < whole; ++byte) {
        times_flags(dy + byte * 8, bits[byte] & 15, dx + byte * 8);
        times_flags(dy + byte * 8 + 4, bits[byte] >> 4, dx + byte * 8 + 4);
    }
    for (int64_t i = whole * 8; i < count; ++i) dx[i] = dy[i] * float(bits[whole] >> i % 8 & 1);
}

// ---- Batch norm.

// Channels that are processed together, so that short rows of an image are read in longer pieces.
struct Channels {
    int64_t first, count;
};

constexpr int64_t kMaxChannels = 64;

// each(k, image, first element) for channel k of the given ones in every image.
template <class Each>
LOWBIT_INLINE void for_each_row(lowbit_layout layout, Channels channels, Each each) {
    for (int64_t image = 0; image < layout.outer; ++image) {
        for (int64_t k = 0; k < channels.count; ++k) {
            each(k, image, (image * layout.channels + channels.first + k) * layout.inner);
        }
    }
}

// Whether x is integer multiples of the scale, which are written from element `at` on; the sign of a zero may
// be lost.
template <bool kHigh>
LOWBIT_INLINE bool to_multiples(const float* __restrict x, float scale, lowbit_multiples multiples,
                                int64_t at, int64_t count) {
    constexpr float kMost = kHigh ? 8388607.0f : 32767.0f;
    uint16_t* __restrict low = multiples.low + at;
    int8_t* __restrict high = kHigh ? multiples.high + at : nullptr;
    int32_t others = 0;
    for (int64_t i = 0; i < count; ++i) {
        const float wanted = x[i] / scale;
        const float whole = (wanted >= -kMost) & (wanted <= kMost) ? round_half_even(wanted) : 0.0f;
        const int32_t multiple = int32_t(whole);
        low[i] = uint16_t(multiple);
        if (kHigh) high[i] = int8_t(multiple >> 16);
        others |= whole * scale == x[i] ? 0 : 1;
    }
    return !others;
}

template <bool kHigh>
LOWBIT_INLINE float multiple(const uint16_t* low, const int8_t* high, int64_t i) {
    return float(kHigh ? high[i] * 65536 + int32_t(low[i]) : int32_t(int16_t(low[i])));
}

template <bool kHigh>
LOWBIT_INLINE void from_multiples(lowbit_multiples multiples, int64_t at, float scale, float* __restrict x,
                                  int64_t count) {
    const uint16_t* __restrict low = multiples.low + at;
    const int8_t* __restrict high = kHigh ? multiples.high + at : nullptr;
    for (int64_t i = 0; i < count; ++i) x[i] = multiple<kHigh>(low, high, i) * scale;
}

// A row of x: the elements from `at` on of a channel of an image. Without x it is made of the multiples, in
// `row`.
LOWBIT_INLINE const float* row_of_x(const lowbit_batch_norm& of, const lowbit_multiples* multiples, int64_t c,
                                    int64_t image, int64_t at, float* row) {
    if (!multiples) return of.x + at;
    const float scale = of.scale[image * of.layout.channels + c];
    if (multiples->high) {
        from_multiples<true>(*multiples, at, scale, row, of.layout.inner);
    } else {
        from_multiples<false>(*multiples, at, scale, row, of.layout.inner);
    }
    return row;
}

// Where the ReLU bits of a row begin; `at` is the row's first element.
LOWBIT_INLINE int64_t bits_at(int64_t at, int64_t inner) { return at / inner * ((inner + 7) / 8); }

LOWBIT_INLINE float max_magnitude(const float* row, int64_t count) {
    const FloatBits* bits = reinterpret_cast<const FloatBits*>(row);
    int32_t most = 0;
    for (int64_t i = 0; i < count; ++i) most = max_int(most, magnitude_bits(bits[i], true));
    float found;
    std::memcpy(&found, &most, sizeof found);
    return found;
}

// Activations other than ReLU, and their slopes, in Paddle's order of operations; NaN stays NaN, as there.
LOWBIT_INLINE float relu6(float x) {
    const float positive = x < 0 ? 0.0f : x;
    return positive > 6.0f ? 6.0f : positive;
}

LOWBIT_INLINE float relu6_slope(float x) { return (x > 0) & (x < 6.0f) ? 1.0f : 0.0f; }

LOWBIT_INLINE float hardswish(float x) { return relu6(x + 3.0f) * x / 6.0f; }

LOWBIT_INLINE float hardswish_slope(float x) {
    const float is_above = x + 3.0f > 0 ? 1.0f : 0.0f, is_below = x + 3.0f < 6.0f ? 1.0f : 0.0f;
    return is_above * (2.0f * x + 3.0f) / 6.0f * is_below + (1.0f - is_below);
}

LOWBIT_INLINE void hardswish_forward(const float* x, float* y, int64_t count) {
    for (int64_t i = 0; i < count; ++i) y[i] = hardswish(x[i]);
}

LOWBIT_INLINE void hardswish_backward(const float* x, const float* dy, float* dx, int64_t count) {
    for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * hardswish_slope(x[i]);
}

// One number per channel each.
struct Statistics {
    float *mean, *inverse, *running_mean, *running_variance;
};

// The statistics of channels whose x and x * x were summed.
LOWBIT_INLINE void finish_statistics(const lowbit_batch_norm& of, Channels channels, const PairSums* sums,
                                     Statistics to) {
    const double count = double(of.layout.outer * of.layout.inner);
    const float old = of.momentum, fresh = 1.0f - of.momentum;
    for (int64_t k = 0; k < channels.count; ++k) {
        const int64_t c = channels.first + k;
        const double middle = PairSums::total(sums[k].firsts) / count;
        const double spread = PairSums::total(sums[k].products) / count - middle * middle;
        const double variance = spread < 0 ? 0 : spread;  // NaN stays NaN
        to.mean[c] = float(middle);
        to.inverse[c] = float(1 / std::sqrt(variance + double(of.epsilon)));
        to.running_mean[c] = to.running_mean[c] * old + to.mean[c] * fresh;
        to.running_variance[c] = to.running_variance[c] * old + float(variance) * fresh;
    }
}

// What makes y of x: y = (x - centre) * gain + shift.
struct Affine {
    float centre, gain, shift;

    LOWBIT_INLINE Affine(const lowbit_batch_norm& of, const float* mean, const float* inverse, int64_t c)
        : centre(mean[c]),
          gain(of.weight ? of.weight[c] * inverse[c] : inverse[c]),
          shift(of.bias ? of.bias[c] : 0.0f) {}
    LOWBIT_INLINE float operator()(float x) const { return (x - centre) * gain + shift; }
};

// With a pool, `scratch` holds a row and, as `columns`, what max_pool_forward takes; `x_row` holds a row
// where multiples replace x.
template <AddPairs kAdd>
LOWBIT_INLINE bool batch_norm_forward(const lowbit_batch_norm& of, Channels channels, float* y, float* mean,
                                      float* inverse, float* running_mean, float* running_variance,
                                      uint8_t* bits, const lowbit_multiples* multiples, float* largest,
                                      uint8_t* places, float* scratch, int32_t* columns, float* x_row) {
    const lowbit_layout layout = of.layout;
    const lowbit_multiples* given = of.x ? nullptr : multiples;
    PairSums sums[kMaxChannels];
    for_each_row(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const float* x = row_of_x(of, given, channels.first + k, image, at, x_row);
        kAdd(sums[k], x, x, layout.inner);
    });
    finish_statistics(of, channels, sums, {mean, inverse, running_mean, running_variance});
    bool fits = multiples;
    for_each_row(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const int64_t c = channels.first + k;
        const Affine affine(of, mean, inverse, c);
        const float* __restrict from = row_of_x(of, given, c, image, at, x_row);
        const auto normal = [=](int64_t i) LOWBIT_INLINE_LAMBDA { return affine(from[i]); };
        float* __restrict to = of.pool ? scratch : y + at;
        int32_t most = 0;  // the bits of the largest magnitude
        const auto write = [&](auto value_of) LOWBIT_INLINE_LAMBDA {
            int32_t found = 0;
            for (int64_t i = 0; i < layout.inner; ++i) {
                const float value = value_of(i);
                to[i] = value;
                found = max_int(found, magnitude_bits(bits_of(value), true));
            }
            most = found;
        };
        if (of.other) {
            const float* __restrict other = of.other + at;
            write([=](int64_t i) LOWBIT_INLINE_LAMBDA { return normal(i) + other[i]; });
            if (of.activation) {
                relu_forward(to, to, bits + bits_at(at, layout.inner), layout.inner);
                if (largest) most = bits_of(max_magnitude(to, layout.inner));
            }
        } else if (of.activation == LOWBIT_RELU) {
            write([=](int64_t i) LOWBIT_INLINE_LAMBDA {
                const float value = normal(i);
                return value > 0 ? value : 0.0f;
            });
        } else if (of.activation == LOWBIT_RELU6) {
            write([=](int64_t i) LOWBIT_INLINE_LAMBDA { return relu6(normal(i)); });
        } else if (of.activation == LOWBIT_HARDSWISH) {
            write([=](int64_t i) LOWBIT_INLINE_LAMBDA { return hardswish(normal(i)); });
        } else {
            write(normal);
        }
        const int64_t row = image * layout.channels + c;
        if (of.pool) {
            const int64_t pooled = row * of.pool->out_height * of.pool->out_width;
            max_pool_forward(to, y + pooled, places + pooled, *of.pool, scratch + layout.inner, columns);
        } else if (largest) {
            largest[row] = float_of(most);
        }
        if (!fits || given) return;
        fits = multiples->high ? to_multiples<true>(from, of.scale[row], *multiples, at, layout.inner)
                               : to_multiples<false>(from, of.scale[row], *multiples, at, layout.inner);
    });
    return fits;
}

}  // namespace lowbit::norm
