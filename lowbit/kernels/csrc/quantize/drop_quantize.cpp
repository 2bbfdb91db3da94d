// The inner loops of block reconstruction (lowbit/ptq): fake quantization that leaves a random share of the
// values as they are, and a shift per channel, each with its gradients; see quantize.h. The slow references
// are in lowbit/ptq.
#include "quantize/quantize.h"
#include "quantize/rounding.h"

namespace lowbit {
namespace {

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
using lowbit::InstructionSet;
using lowbit::RandomKey;

struct Loops {
    void (*drop_quantize)(const float* x, float* y, const float* scale, ChannelBlock block, lowbit_grid grid,
                          RandomKey key, uint32_t first, uint32_t threshold);
    void (*drop_lsq_grad)(const float* x, const float* dy, float* dx, const float* step, double* dstep,
                          ChannelBlock block, lowbit_grid grid, RandomKey key, uint32_t first,
                          uint32_t threshold);
    void (*shift)(const float* x, float* y, const float* by, ChannelBlock block);
    void (*channel_sums)(const float* dy, double* sums, ChannelBlock block);
};

#define LOWBIT_DROP_QUANTIZE(NAME, TARGET)                                                                  \
    namespace NAME {                                                                                        \
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
    const Loops loops = {drop_quantize, drop_lsq_grad, shift, channel_sums};                                \
    }

#if LOWBIT_X86
LOWBIT_DROP_QUANTIZE(avx512, LOWBIT_TARGET_AVX512)
LOWBIT_DROP_QUANTIZE(avx2, LOWBIT_TARGET_AVX2)
#endif
LOWBIT_DROP_QUANTIZE(baseline, )

const Loops& current() {
#if LOWBIT_X86
    const InstructionSet set = lowbit::instruction_set();
    if (set >= InstructionSet::avx512) return avx512::loops;
    if (set >= InstructionSet::avx2) return avx2::loops;
#endif
    return baseline::loops;
}

}  // namespace

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
