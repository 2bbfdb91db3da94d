// ReLU, which saves one bit per element for backward; and batch norm of a few channels with an activation:
// all images are read for the sums, then again while they are in the cache.
#pragma once
#include "norm/max_pool.h"
#include "norm/norm.h"
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

// kWide doubles of one register, from floats. Written out: of __builtin_convertvector, g++ makes two halves.
template <int kWide>
struct Wide;
template <>
struct Wide<4> {
    using Vector = Doubles;
    static LOWBIT_INLINE void load(const float* x, Vector& to) { to = Vector{x[0], x[1], x[2], x[3]}; }
};
template <>
struct Wide<8> {
    typedef double Vector __attribute__((vector_size(8 * sizeof(double))));
    static LOWBIT_INLINE void load(const float* x, Vector& to) {
        to = Vector{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
    }
};

// Sums of x and of x * other. Products of two floats are exact in double.
template <int kWide>
struct PairSums {
    using Vector = typename Wide<kWide>::Vector;
    static constexpr int kParts = kLanes / kWide;
    Vector firsts[kParts] = {}, products[kParts] = {};

    // Sixteen pairs at a time go to sixteen partial sums; the pair at position i goes to sum i mod 16.
    LOWBIT_INLINE void add(const float* x, const float* other, int64_t count) {
        // Local copies: compilers would store the members in every iteration.
        Vector sums[kParts], squares[kParts];
        for (int part = 0; part < kParts; ++part) sums[part] = firsts[part], squares[part] = products[part];
        const auto sixteen = [&](const float* p, const float* q) LOWBIT_INLINE_LAMBDA {
            for (int part = 0; part < kParts; ++part) {
                Vector value, factor;
                Wide<kWide>::load(p + part * kWide, value);
                Wide<kWide>::load(q + part * kWide, factor);
                sums[part] += value;
                squares[part] += value * factor;
            }
        };
        int64_t at = 0;
        for (; at + kLanes <= count; at += kLanes) sixteen(x + at, other + at);
        if (at < count) {
            float rest[kLanes] = {}, other_rest[kLanes] = {};  // zeros do not change the sums
            std::memcpy(rest, x + at, size_t(count - at) * sizeof(float));
            std::memcpy(other_rest, other + at, size_t(count - at) * sizeof(float));
            sixteen(rest, other_rest);
        }
        for (int part = 0; part < kParts; ++part) firsts[part] = sums[part], products[part] = squares[part];
    }

    // In the same order for every register width.
    static LOWBIT_INLINE double total(const Vector* parts) {
        double all[kLanes];
        std::memcpy(all, parts, sizeof all);
        for (int apart = kLanes / 2; apart; apart /= 2) {
            for (int i = 0; i < apart; ++i) all[i] += all[i + apart];
        }
        return all[0];
    }
};

// Channels that are processed together, so that short rows of an image are read in longer pieces.
struct Channels {
    int64_t first, count;
};

constexpr int64_t kMaxChannels = 32;

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
LOWBIT_INLINE void from_multiples(lowbit_multiples multiples, int64_t at, float scale, float* __restrict x,
                                  int64_t count) {
    const uint16_t* __restrict low = multiples.low + at;
    const int8_t* __restrict high = kHigh ? multiples.high + at : nullptr;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t multiple = kHigh ? high[i] * 65536 + int32_t(low[i]) : int32_t(int16_t(low[i]));
        x[i] = float(multiple) * scale;
    }
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

// With a pool, `scratch` holds a row and, as `columns`, what max_pool_forward takes; `x_row` holds a row
// where multiples replace x.
template <int kWide>
LOWBIT_INLINE bool batch_norm_forward(const lowbit_batch_norm& of, Channels channels, float* y, float* mean,
                                      float* inverse, float* running_mean, float* running_variance,
                                      uint8_t* bits, const lowbit_multiples* multiples, float* largest,
                                      uint8_t* places, float* scratch, int32_t* columns, float* x_row) {
    const lowbit_layout layout = of.layout;
    const double count = double(layout.outer * layout.inner);
    const float old = of.momentum, fresh = 1.0f - of.momentum;
    const lowbit_multiples* given = of.x ? nullptr : multiples;
    PairSums<kWide> sums[kMaxChannels];
    for_each_row(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const float* x = row_of_x(of, given, channels.first + k, image, at, x_row);
        sums[k].add(x, x, layout.inner);
    });
    for (int64_t k = 0; k < channels.count; ++k) {
        const int64_t c = channels.first + k;
        const double middle = PairSums<kWide>::total(sums[k].firsts) / count;
        const double spread = PairSums<kWide>::total(sums[k].products) / count - middle * middle;
        const double variance = spread < 0 ? 0 : spread;  // NaN stays NaN
        mean[c] = float(middle);
        inverse[c] = float(1 / std::sqrt(variance + double(of.epsilon)));
        running_mean[c] = running_mean[c] * old + mean[c] * fresh;
        running_variance[c] = running_variance[c] * old + float(variance) * fresh;
    }
    bool fits = multiples;
    for_each_row(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const int64_t c = channels.first + k;
        const float centre = mean[c], shift = of.bias ? of.bias[c] : 0.0f;
        const float gain = of.weight ? of.weight[c] * inverse[c] : inverse[c];
        const float* __restrict from = row_of_x(of, given, c, image, at, x_row);
        float* __restrict to = of.pool ? scratch : y + at;
        if (of.other) {
            const float* __restrict other = of.other + at;
            for (int64_t i = 0; i < layout.inner; ++i) to[i] = (from[i] - centre) * gain + shift + other[i];
            if (of.activation) relu_forward(to, to, bits + bits_at(at, layout.inner), layout.inner);
        } else if (of.activation == LOWBIT_RELU) {
            for (int64_t i = 0; i < layout.inner; ++i) {
                const float value = (from[i] - centre) * gain + shift;
                to[i] = value > 0 ? value : 0.0f;
            }
        } else if (of.activation == LOWBIT_RELU6) {
            for (int64_t i = 0; i < layout.inner; ++i) to[i] = relu6((from[i] - centre) * gain + shift);
        } else if (of.activation == LOWBIT_HARDSWISH) {
            for (int64_t i = 0; i < layout.inner; ++i) to[i] = hardswish((from[i] - centre) * gain + shift);
        } else {
            for (int64_t i = 0; i < layout.inner; ++i) to[i] = (from[i] - centre) * gain + shift;
        }
        const int64_t row = image * layout.channels + c;
        if (of.pool) {
            const int64_t pooled = row * of.pool->out_height * of.pool->out_width;
            max_pool_forward(to, y + pooled, places + pooled, *of.pool, scratch + layout.inner, columns);
        } else if (largest) {
            largest[row] = max_magnitude(to, layout.inner);
        }
        if (!fits || given) return;
        fits = multiples->high ? to_multiples<true>(from, of.scale[row], *multiples, at, layout.inner)
                               : to_multiples<false>(from, of.scale[row], *multiples, at, layout.inner);
    });
    return fits;
}

// `scratch` holds three rows.
template <int kWide>
LOWBIT_INLINE void batch_norm_backward(const lowbit_batch_norm& of, Channels channels, const uint8_t* bits,
                                       const lowbit_multiples* multiples, const float* mean,
                                       const float* inverse, const float* dy, float* dx, float* dweight,
                                       float* dbias, float* dother, float* largest, const uint8_t* places,
                                       float* scratch) {
    const lowbit_layout layout = of.layout;
    const double count = double(layout.outer * layout.inner);
    const auto gain_of = [&](int64_t c) LOWBIT_INLINE_LAMBDA {
        return of.weight ? of.weight[c] * inverse[c] : inverse[c];
    };
    const auto x_of = [&](int64_t c, int64_t image, int64_t at)
                          LOWBIT_INLINE_LAMBDA { return row_of_x(of, multiples, c, image, at, scratch); };
    // dy of a row; with a pool, dx of that.
    const auto dy_of = [&](int64_t at) LOWBIT_INLINE_LAMBDA {
        if (!of.pool) return dy + at;
        const int64_t pooled = at / layout.inner * of.pool->out_height * of.pool->out_width;
        max_pool_backward(dy + pooled, places + pooled, scratch + 2 * layout.inner, *of.pool);
        return static_cast<const float*>(scratch + 2 * layout.inner);
    };
    // dy before the activation, if there is one, written to `to`. Without a residual, x tells its slope.
    const auto given_of = [&](int64_t c, int64_t at, const float* __restrict x,
                              float* __restrict to) LOWBIT_INLINE_LAMBDA {
        const float* __restrict from = dy_of(at);
        if (!of.activation) return from;
        if (bits) {
            relu_backward(from, bits + bits_at(at, layout.inner), to, layout.inner);
        } else {
            const float centre = mean[c], gain = gain_of(c), shift = of.bias ? of.bias[c] : 0.0f;
            const auto scaled_by = [&](auto slope) LOWBIT_INLINE_LAMBDA {
                for (int64_t i = 0; i < layout.inner; ++i) {
                    to[i] = from[i] * slope((x[i] - centre) * gain + shift);
                }
            };
            if (of.activation == LOWBIT_RELU6) {
                scaled_by([](float z) LOWBIT_INLINE_LAMBDA { return relu6_slope(z); });
            } else if (of.activation == LOWBIT_HARDSWISH) {
                scaled_by([](float z) LOWBIT_INLINE_LAMBDA { return hardswish_slope(z); });
            } else {
                scaled_by([](float z) LOWBIT_INLINE_LAMBDA { return z > 0 ? 1.0f : 0.0f; });
            }
        }
        return static_cast<const float*>(to);
    };
    float* rest = scratch + layout.inner;
    if (!of.activation) dother = nullptr;
    PairSums<kWide> sums[kMaxChannels];
    for_each_row(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const int64_t c = channels.first + k;
        const float* x = x_of(c, image, at);
        sums[k].add(given_of(c, at, x, dother ? dother + at : rest), x, layout.inner);
    });
    float common[kMaxChannels], slope[kMaxChannels];
    for (int64_t k = 0; k < channels.count; ++k) {
        const int64_t c = channels.first + k;
        const double sum = PairSums<kWide>::total(sums[k].firsts);
        // The sum of dy * (x - mean): the difference in double loses nothing that a float could show.
        const double centred = PairSums<kWide>::total(sums[k].products) - double(mean[c]) * sum;
        if (dweight) dweight[c] = float(centred * inverse[c]);
        if (dbias) dbias[c] = float(sum);
        common[k] = float(sum / count);
        slope[k] = float(centred / count * inverse[c] * inverse[c]);
    }
    if (!dx) return;
    // Both rows are computed again, which costs less than keeping them in memory.
    for_each_row(layout, channels, [&](int64_t k, int64_t image, int64_t at) LOWBIT_INLINE_LAMBDA {
        const int64_t c = channels.first + k;
        const float centre = mean[c], gain = gain_of(c), shared = common[k], steep = slope[k];
        const float* x = x_of(c, image, at);
        const float* given = dother ? dother + at : given_of(c, at, x, rest);
        float* to = dx + at;  // which may be x: element i is read before it is written
        LOWBIT_INDEPENDENT_ITERATIONS
        for (int64_t i = 0; i < layout.inner; ++i) {
            to[i] = (given[i] - shared - (x[i] - centre) * steep) * gain;
        }
        if (largest) largest[image * layout.channels + c] = max_magnitude(to, layout.inner);
    });
}

}  // namespace lowbit::norm
