// What is done with each element. The slow twins are in lowbit/numerics: quantize.py, pact.py, lsq.py.
#pragma once
#include "loops.h"

namespace lowbit {

constexpr float kNoFractions = 8388608.0f;  // 2^23: floats from here on are integers

// To the nearest integer, halves to the even one, for values of a grid's size; zeros keep their sign.
LOWBIT_INLINE float nearest(float v) {
    return __builtin_copysignf((__builtin_fabsf(v) + kNoFractions) - kNoFractions, v);
}

// A value that is NaN fails both comparisons and stays.
LOWBIT_INLINE float clip(float v, float lower, float upper) {
    v = v < lower ? lower : v;
    return v > upper ? upper : v;
}

// The same but for a zero's sign, which here is that of Paddle's maximum: 0 and not -0 at a lower end of 0.
LOWBIT_INLINE float clip_to_bound(float v, float lower, float upper) {
    v = v <= lower ? lower : v;
    return v > upper ? upper : v;
}

LOWBIT_INLINE float lower_end(float bound, lowbit_grid grid) { return grid.is_signed ? -bound : 0.0f; }

// A bound that is NaN makes everything NaN; clipping would let values through.
LOWBIT_INLINE float spoilt_by(float bound, float scale) { return bound == bound ? scale : bound; }

template <bool kBound, bool kIntegers>
LOWBIT_INLINE void quantize_as(const float* x, float* y, const float* scale, const float* bound,
                               Block block, lowbit_grid grid) {
    visit(block, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float upper = kBound ? bound[c] : 0.0f, lower = lower_end(upper, grid);
        const float s = kBound ? spoilt_by(upper, scale[c]) : scale[c];
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
            const float inside = kBound ? clip_to_bound(x[at], lower, upper) : x[at];
            const float q = nearest(clip(inside / s, grid.lowest, grid.highest));
            y[at] = kIntegers ? q : q * s;
        };
    });
}

LOWBIT_INLINE void quantize(const float* x, float* y, const float* scale, const float* bound,
                            Block block, lowbit_grid grid, int32_t integers) {
    if (bound && integers) {
        quantize_as<true, true>(x, y, scale, bound, block, grid);
    } else if (bound) {
        quantize_as<true, false>(x, y, scale, bound, block, grid);
    } else if (integers) {
        quantize_as<false, true>(x, y, scale, bound, block, grid);
    } else {
        quantize_as<false, false>(x, y, scale, bound, block, grid);
    }
}

// Calls of(channel)(place), which writes dx and returns a term of the sum, in the form that is wanted.
template <class Of>
LOWBIT_INLINE void gradients(Block block, float* dx, double* sums, Of of) {
    const auto term_only = [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const auto each = of(c);
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA { return each(at).term; };
    };
    const auto both = [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const auto each = of(c);
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
            const auto gradient = each(at);
            dx[at] = gradient.x;
            return gradient.term;
        };
    };
    if (!sums) {
        visit(block, both);
    } else if (!dx) {
        visit_and_sum(block, sums, term_only);
    } else {
        visit_and_sum(block, sums, both);
    }
}

struct Gradient {
    float x, term;
};

LOWBIT_INLINE void quantize_grad(const float* x, const float* dy, float* dx, const float* scale,
                                 const float* bound, double* dbound, Block block, lowbit_grid grid) {
    const float lowest = grid.lowest - 0.5f, highest = grid.highest + 0.5f;
    const bool is_signed = grid.is_signed;
    if (!bound) {
        gradients(block, dx, nullptr, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
            const float s = scale[c];
            return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
                const float v = x[at] / s, given = dy[at];
                return Gradient{(v >= lowest) & (v <= highest) ? given : 0.0f, 0.0f};
            };
        });
        return;
    }
    gradients(block, dx, dbound, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float upper = bound[c], lower = lower_end(upper, grid), s = spoilt_by(upper, scale[c]);
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
            const float value = x[at], given = dy[at];
            const float v = clip_to_bound(value, lower, upper) / s;
            const float g = (v >= lowest) & (v <= highest) ? given : 0.0f;
            const bool above = value > upper, below = value < lower;
            const float from_below = below ? -g : 0.0f;
            return Gradient{above | below ? 0.0f : g, above ? g : is_signed ? from_below : 0.0f};
        };
    });
}

LOWBIT_INLINE void lsq_grad(const float* x, const float* dy, float* dx, const float* step, double* dstep,
                            Block block, lowbit_grid grid) {
    gradients(block, dx, dstep, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float s = step[c];
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
            const float v = x[at] / s, given = dy[at];
            const float q = nearest(clip(v, grid.lowest, grid.highest));
            const bool inside = (v > grid.lowest) & (v < grid.highest);
            const float slope = inside ? q - v : q;
            return Gradient{inside ? given : 0.0f, given * slope};
        };
    });
}

}  // namespace lowbit
