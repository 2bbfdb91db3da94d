// Fake quantization and its gradients, element by element; see quantize.h. The slow references are in
// lowbit/numerics, and for block reconstruction in lowbit/ptq.
#include "quantize/bounds.h"
#include "quantize/quantize.h"

namespace lowbit {
namespace {

template <bool kBound, bool kIntegers>
LOWBIT_INLINE void quantize_as(const float* x, float* y, const float* scale, const float* bound,
                               ChannelBlock block, lowbit_grid grid) {
    for_each_element(block, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float upper = kBound ? bound[c] : 0.0f, lower = lower_bound(upper, grid);
        const float s = kBound ? propagate_nan(upper, scale[c]) : scale[c];
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
            const float inside = kBound ? clip_to_bound(x[at], lower, upper) : x[at];
            const float q = round_half_even(clip(inside / s, grid.lowest, grid.highest));
            y[at] = kIntegers ? q : q * s;
        };
    });
}

LOWBIT_INLINE void quantize(const float* x, float* y, const float* scale, const float* bound,
                            ChannelBlock block, lowbit_grid grid, int32_t integers) {
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

// Calls of(channel)(index), which returns the gradient of x and a term of the sum; writes what is wanted.
template <class Of>
LOWBIT_INLINE void apply_gradients(ChannelBlock block, float* dx, double* sums, Of of) {
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
        for_each_element(block, both);
    } else if (!dx) {
        for_each_element_and_sum(block, sums, term_only);
    } else {
        for_each_element_and_sum(block, sums, both);
    }
}

struct Gradient {
    float x, term;
};

LOWBIT_INLINE void quantize_grad(const float* x, const float* dy, float* dx, const float* scale,
                                 const float* bound, double* dbound, ChannelBlock block, lowbit_grid grid) {
    const float lowest = grid.lowest - 0.5f, highest = grid.highest + 0.5f;
    const bool is_signed = grid.is_signed;
    if (!bound) {
        apply_gradients(block, dx, nullptr, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
            const float s = scale[c];
            return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
                const float v = x[at] / s, given = dy[at];
                return Gradient{(v >= lowest) & (v <= highest) ? given : 0.0f, 0.0f};
            };
        });
        return;
    }
    apply_gradients(block, dx, dbound, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float upper = bound[c], lower = lower_bound(upper, grid), s = propagate_nan(upper, scale[c]);
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
                            ChannelBlock block, lowbit_grid grid) {
    apply_gradients(block, dx, dstep, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float s = step[c];
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
            const float v = x[at] / s, given = dy[at];
            const float q = round_half_even(clip(v, grid.lowest, grid.highest));
            const bool inside = (v > grid.lowest) & (v < grid.highest);
            const float slope = inside ? q - v : q;
            return Gradient{inside ? given : 0.0f, given * slope};
        };
    });
}

// ---- Block reconstruction: a random share of the values stays as it is, and channels are shifted.

// Whether an element is dropped is a function of the draw and its index: nothing is kept for the gradient.
LOWBIT_INLINE void drop_quantize(const float* x, float* y, const float* scale, ChannelBlock block,
                                 lowbit_grid grid, RandomKey key, uint32_t first, uint32_t threshold) {
    for_each_element(block, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float s = scale[c];
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
            const float value = x[at];
            const float q = round_half_even(clip(value / s, grid.lowest, grid.highest)) * s;
            y[at] = key(first + uint32_t(at)) < threshold ? value : q;
        };
    });
}

LOWBIT_INLINE void drop_lsq_grad(const float* x, const float* dy, float* dx, const float* step, double* dstep,
                                 ChannelBlock block, lowbit_grid grid, RandomKey key, uint32_t first,
                                 uint32_t threshold) {
    for_each_element_and_sum(block, dstep, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float s = step[c];
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA {
            const float v = x[at] / s, given = dy[at];
            const float q = round_half_even(clip(v, grid.lowest, grid.highest));
            const bool inside = (v > grid.lowest) & (v < grid.highest);
            const bool dropped = key(first + uint32_t(at)) < threshold;
            dx[at] = inside | dropped ? given : 0.0f;
            const float slope = inside ? q - v : q;
            return dropped ? 0.0f : given * slope;
        };
    });
}

LOWBIT_INLINE void shift(const float* x, float* y, const float* by, ChannelBlock block) {
    for_each_element(block, [=](int64_t c) LOWBIT_INLINE_LAMBDA {
        const float added = by[c];
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA { y[at] = x[at] + added; };
    });
}

LOWBIT_INLINE void channel_sums(const float* dy, double* sums, ChannelBlock block) {
    for_each_element_and_sum(block, sums, [=](int64_t) LOWBIT_INLINE_LAMBDA {
        return [=](int64_t at) LOWBIT_INLINE_LAMBDA { return dy[at]; };
    });
}

}  // namespace
}  // namespace lowbit

namespace {

using lowbit::ChannelBlock;
using lowbit::RandomKey;

// The loops over one block for one instruction set.
struct Loops {
    void (*quantize)(const float* x, float* y, const float* scale, const float* bound, ChannelBlock block,
                     lowbit_grid grid, int32_t integers);
    void (*quantize_grad)(const float* x, const float* dy, float* dx, const float* scale, const float* bound,
                          double* dbound, ChannelBlock block, lowbit_grid grid);
    void (*lsq_grad)(const float* x, const float* dy, float* dx, const float* step, double* dstep,
                     ChannelBlock block, lowbit_grid grid);
    void (*drop_quantize)(const float* x, float* y, const float* scale, ChannelBlock block, lowbit_grid grid,
                          RandomKey key, uint32_t first, uint32_t threshold);
    void (*drop_lsq_grad)(const float* x, const float* dy, float* dx, const float* step, double* dstep,
                          ChannelBlock block, lowbit_grid grid, RandomKey key, uint32_t first,
                          uint32_t threshold);
    void (*shift)(const float* x, float* y, const float* by, ChannelBlock block);
    void (*channel_sums)(const float* dy, double* sums, ChannelBlock block);
};

#define LOWBIT_FAKE_QUANTIZE(NAME, TARGET)                                                                  \
    namespace NAME {                                                                                        \
    TARGET void quantize(const float* x, float* y, const float* scale, const float* bound,                  \
                         ChannelBlock block, lowbit_grid grid, int32_t integers) {                          \
        lowbit::quantize(x, y, scale, bound, block, grid, integers);                                        \
    }                                                                                                       \
    TARGET void quantize_grad(const float* x, const float* dy, float* dx, const float* scale,               \
                              const float* bound, double* dbound, ChannelBlock block, lowbit_grid grid) {   \
        lowbit::quantize_grad(x, dy, dx, scale, bound, dbound, block, grid);                                \
    }                                                                                                       \
    TARGET void lsq_grad(const float* x, const float* dy, float* dx, const float* step, double* dstep,      \
                         ChannelBlock block, lowbit_grid grid) {                                            \
        lowbit::lsq_grad(x, dy, dx, step, dstep, block, grid);                                              \
    }                                                                                                       \
    TARGET void drop_quantize(const float* x, float* y, const float* scale, ChannelBlock block,             \
                              lowbit_grid grid, RandomKey key, uint32_t first, uint32_t threshold) {        \
        lowbit::drop_quantize(x, y, scale, block, grid, key, first, threshold);                             \
    }                                                                                                       \
    TARGET void drop_lsq_grad(const float* x, const float* dy, float* dx, const float* step, double* dstep, \
                              ChannelBlock block, lowbit_grid grid, RandomKey key, uint32_t first,          \
                              uint32_t threshold) {                                                         \
        lowbit::drop_lsq_grad(x, dy, dx, step, dstep, block, grid, key, first, threshold);                  \
    }                                                                                                       \
    TARGET void shift(const float* x, float* y, const float* by, ChannelBlock block) {                      \
        lowbit::shift(x, y, by, block);                                                                     \
    }                                                                                                       \
    TARGET void channel_sums(const float* dy, double* sums, ChannelBlock block) {                           \
        lowbit::channel_sums(dy, sums, block);                                                              \
    }                                                                                                       \
    const Loops loops = {quantize,      quantize_grad, lsq_grad,    drop_quantize,                          \
                         drop_lsq_grad, shift,         channel_sums};                                       \
    }

#if LOWBIT_X86
LOWBIT_FAKE_QUANTIZE(avx512, LOWBIT_TARGET_AVX512)
LOWBIT_FAKE_QUANTIZE(avx2, LOWBIT_TARGET_AVX2)
#endif
LOWBIT_FAKE_QUANTIZE(baseline, )

const Loops& current() { return LOWBIT_CHOOSE(loops); }

}  // namespace

int lowbit_quantize(const float* x, float* y, const float* scale, const float* bound, lowbit_layout layout,
                    lowbit_grid grid, int32_t integers) {
    return lowbit::guarded([&] {
        lowbit::for_each_channel_block(layout, [&](ChannelBlock block, int64_t at, int64_t c) {
            current().quantize(x + at, y + at, scale + c, bound ? bound + c : nullptr, block, grid, integers);
        });
    });
}

int lowbit_quantize_grad(const float* x, const float* dy, float* dx, const float* scale, const float* bound,
                         float* dbound, lowbit_layout layout, lowbit_grid grid) {
    return lowbit::guarded([&] {
        float* const totals = bound ? dbound : nullptr;
        lowbit::for_each_channel_block(
            layout, totals, [&](ChannelBlock block, int64_t at, int64_t c, double* sums) {
                current().quantize_grad(x + at, dy + at, dx ? dx + at : nullptr, scale + c,
                                        bound ? bound + c : nullptr, sums, block, grid);
            });
    });
}

int lowbit_lsq_grad(const float* x, const float* dy, float* dx, const float* step, float* dstep,
                    lowbit_layout layout, lowbit_grid grid) {
    return lowbit::guarded([&] {
        lowbit::for_each_channel_block(
            layout, dstep, [&](ChannelBlock block, int64_t at, int64_t c, double* sums) {
                current().lsq_grad(x + at, dy + at, dx ? dx + at : nullptr, step + c, sums, block, grid);
            });
    });
}

int lowbit_drop_quantize(const float* x, float* y, const float* scale, lowbit_layout layout, lowbit_grid grid,
                         const lowbit_draw* draw, uint32_t threshold) {
    return lowbit::guarded([&] {
        const RandomKey key(*draw, 0);
        lowbit::for_each_channel_block(layout, [&](ChannelBlock block, int64_t at, int64_t c) {
            current().drop_quantize(x + at, y + at, scale + c, block, grid, key, uint32_t(at), threshold);
        });
    });
}

int lowbit_drop_lsq_grad(const float* x, const float* dy, float* dx, const float* step, float* dstep,
                         lowbit_layout layout, lowbit_grid grid, const lowbit_draw* draw,
                         uint32_t threshold) {
    return lowbit::guarded([&] {
        const RandomKey key(*draw, 0);
        lowbit::for_each_channel_block(layout, dstep,
                                       [&](ChannelBlock block, int64_t at, int64_t c, double* sums) {
                                           current().drop_lsq_grad(x + at, dy + at, dx + at, step + c, sums,
                                                                   block, grid, key, uint32_t(at), threshold);
                                       });
    });
}

int lowbit_shift_channels(const float* x, float* y, const float* by, lowbit_layout layout) {
    return lowbit::guarded([&] {
        lowbit::for_each_channel_block(layout, [&](ChannelBlock block, int64_t at, int64_t c) {
            current().shift(x + at, y + at, by + c, block);
        });
    });
}

int lowbit_channel_sums(const float* dy, float* sums, lowbit_layout layout) {
    return lowbit::guarded([&] {
        lowbit::for_each_channel_block(layout, sums,
                                       [&](ChannelBlock block, int64_t at, int64_t, double* totals) {
                                           current().channel_sums(dy + at, totals, block);
                                       });
    });
}
