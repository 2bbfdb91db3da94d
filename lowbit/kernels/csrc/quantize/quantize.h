// fp32 tensors to small integers and back (quantize.cpp), and fake quantization with its gradients
// (fake_quantize.cpp).
//
// Two views of a tensor: lowbit_axes for integers, where scales belong to any subset of the axes
// (grouped_axes.h), and lowbit_layout for fake quantization, where they belong to channels or to the whole
// tensor (channel_blocks.h). Integers are int8, or uint8 where `lowest` is not negative, a byte each, in the
// order of the tensor. Files:
//   quantize.cpp       the C functions for integers: ranges, scales, conversion, 4-bit packing, rotation
//   ranges.h           largest magnitudes, ranges of least squared error, scales
//   integers.h         rounding to integers on linear or logarithmic grids; 4-bit packing
//   log_rounding.h     the same on log4 with one random number each, with AVX2
//   rounding.h         rounding of one value; the random numbers of stochastic rounding
//   hadamard.h         the Walsh-Hadamard transform
//   marks.h            rounding that marks what was clipped, the gradients from marks, averages of ranges
//   observed.cpp       what a quantizer of training does in one call: observe, choose a scale, round
//   fake_quantize.cpp  quantized values in fp32, with the gradients of PACT, LSQ and block reconstruction
// The slow references that tests compare with are in lowbit/numerics. Every loop is compiled for baseline,
// AVX2 and AVX-512, and the variant follows the instruction set alone. Nothing is allocated.
#pragma once
#include "common/channel_blocks.h"
#include "common/grouped_axes.h"
#include "quantize/rounding.h"

// The integers from lowest to highest; for a log grid 0, the powers of two up to highest, and their
// negatives.
struct lowbit_levels {
    int32_t lowest, highest;
    int32_t is_log;
};

// ranges[g] = the largest |x|, or, if not signed, the largest of 0 and x; NaN where a value is NaN. Without
// elements, 0.
LOWBIT_PUBLIC int lowbit_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t is_signed);

// The ranges of least squared error after `iterations` > 0 steps. With is_known, `ranges` holds the signed
// results of lowbit_ranges; otherwise they are computed first, group by group, while the values are in the
// cache.
LOWBIT_PUBLIC int lowbit_mse_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t lowest,
                                    int32_t highest, int32_t iterations, int32_t is_known);

// scales[i] = the scale with which ranges[i] is the highest integer: 1 for 0, NaN where the range is not
// finite.
LOWBIT_PUBLIC int lowbit_scales(const float* ranges, float* scales, int64_t count, int32_t lowest,
                                int32_t highest);

// q = clip(x / scale) rounded to nearest (no draws), or stochastically by a draw; with two draws the sum of
// both integers, which must fit into a byte. `first` is the number of the first element for the draws. NaN
// becomes 0; returns how many there were, or a negative status.
LOWBIT_PUBLIC int64_t lowbit_to_integers(const float* x, void* q, const float* scales,
                                         const lowbit_axes* axes, const lowbit_levels* levels,
                                         const lowbit_draw* draws, int32_t count_draws, uint64_t first);

// y = q * scale.
LOWBIT_PUBLIC int lowbit_from_integers(const void* q, float* y, const float* scales, const lowbit_axes* axes,
                                       int32_t is_signed);

// 4-bit integers, two per byte, the first in the lower half; after an odd number, 0.
LOWBIT_PUBLIC int lowbit_pack_nibbles(const void* q, uint8_t* packed, int64_t count);
LOWBIT_PUBLIC int lowbit_unpack_nibbles(const uint8_t* packed, void* q, int64_t count, int32_t is_signed);

// The orthonormal Walsh-Hadamard transform, its own inverse, of every `block` consecutive elements along the
// middle axis of [before, size, after]; block is a power of two up to 64 that divides the size.
LOWBIT_PUBLIC int lowbit_hadamard(const float* x, float* y, int64_t before, int64_t size, int64_t after,
                                  int64_t block);

struct lowbit_grid {
    float lowest, highest;
    int32_t is_signed;  // for bounds, which are [-bound, bound] or [0, bound]
};

// y = clip(round(clip(x, bound) / scale), grid), times the scale unless `integers`; no clipping to a bound if
// null.
LOWBIT_PUBLIC int lowbit_quantize(const float* x, float* y, const float* scale, const float* bound,
                                  lowbit_layout layout, lowbit_grid grid, int32_t integers);

// Straight-through gradient: dx = dy where neither the grid (plus half a step) nor the bound clipped.
// dbound[c] = the sum of dy above the bound minus, if signed, the sum below.
LOWBIT_PUBLIC int lowbit_quantize_grad(const float* x, const float* dy, float* dx, const float* scale,
                                       const float* bound, float* dbound, lowbit_layout layout,
                                       lowbit_grid grid);

// LSQ gradients, with v = x / step and q = clip(round(v)): dx = dy where lowest < v < highest; dstep[c] = the
// sum of dy * (q - v) there and of dy * q elsewhere.
LOWBIT_PUBLIC int lowbit_lsq_grad(const float* x, const float* dy, float* dx, const float* step, float* dstep,
                                  lowbit_layout layout, lowbit_grid grid);

// The ranges of batches, averaged; MovingAverage of lowbit/numerics. `entered` and `left_out` count batches.
struct lowbit_moving_average {
    float rate;
    float *state, *accum, *range;
    int64_t *entered, *left_out;
};

// A quantizer of training with one scale. `alpha`, if given, is PACT's parameter; `bound`, alpha as it is
// used, and `scale` are written.
struct lowbit_observer {
    const float* alpha;
    lowbit_grid grid;
    lowbit_moving_average average;
    float bound;
    float* scale;
};

// As lowbit_quantize for one scale: values in `y`, integers, a byte each, in `q`, where NaN becomes 0.
// `clipped`, all that gradients need: 0 where dx = dy; where dx is 0, 1 for a value above the bound, -1 for
// one below it if signed, and 2 for others, whose dy is lost. Returns how many values were NaN.
LOWBIT_PUBLIC int64_t lowbit_quantize_and_mark(const float* x, float* y, void* q, int8_t* clipped,
                                               const float* scale, const float* bound, int64_t count,
                                               lowbit_grid grid);

// Enters the range of x, clipped to alpha, into the average, unless it is not finite; then
// lowbit_quantize_and_mark with the scale that the average gives, or, before any batch has entered, that of
// this range. Without alpha, negative values count on unsigned grids, too.
LOWBIT_PUBLIC int64_t lowbit_observe_and_mark(const float* x, float* y, void* q, int8_t* clipped,
                                              int64_t count, lowbit_observer* by);

// The gradients of lowbit_quantize_grad from these marks, each if wanted; dx may be dy.
LOWBIT_PUBLIC int lowbit_marked_grad(const float* dy, const int8_t* clipped, float* dx, float* dbound,
                                     int64_t count);

// lowbit_ranges times `ratio`, or with `iterations` lowbit_mse_ranges, lowbit_scales and lowbit_to_integers
// in one call. `largest`, if known, are the largest magnitudes along the last two axes, which own no scales
// then.
LOWBIT_PUBLIC int64_t lowbit_to_dynamic_integers(const float* x, void* q, float* scales,
                                                 const lowbit_axes* axes, const lowbit_levels* levels,
                                                 const float* largest, int32_t iterations, float ratio,
                                                 const lowbit_draw* draws, int32_t count_draws,
                                                 uint64_t first);

// What block reconstruction needs. As lowbit_quantize, but values whose 24 random bits of
// the draw are below the threshold stay as they are; at most 2^32 elements.
LOWBIT_PUBLIC int lowbit_drop_quantize(const float* x, float* y, const float* scale, lowbit_layout layout,
                                       lowbit_grid grid, const lowbit_draw* draw, uint32_t threshold);

// Its LSQ gradients: values that stay give dx = dy and nothing to dstep.
LOWBIT_PUBLIC int lowbit_drop_lsq_grad(const float* x, const float* dy, float* dx, const float* step,
                                       float* dstep, lowbit_layout layout, lowbit_grid grid,
                                       const lowbit_draw* draw, uint32_t threshold);

// y = x + by[c], and its gradient by `by`: the sums of dy per channel.
LOWBIT_PUBLIC int lowbit_shift_channels(const float* x, float* y, const float* by, lowbit_layout layout);
LOWBIT_PUBLIC int lowbit_channel_sums(const float* dy, float* sums, lowbit_layout layout);
