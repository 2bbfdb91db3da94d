// Products of a convolution whose operands are quantized or unpacked on the way, in one call.
//
// What low-precision training does: in forward, x and w in fp32 are quantized, and x is saved with half a
// byte per element; in backward, dy in fp32 is quantized for each of its products. Integers that are not to
// be saved live in the thread's own memory for the time of the call.
#pragma once
#include "common/grouped_axes.h"
#include "gemm/gemm.h"
#include "quantize/quantize.h"

// How fp32 values become integers: as by lowbit_to_dynamic_integers.
struct lowbit_quantization {
    lowbit_axes axes;
    lowbit_levels levels;
    int32_t iterations, count_draws;
    float ratio;
    lowbit_draw draws[2];
    uint64_t first;
};

// An operand whose integers are yet to be made of `values` or, if that is null, of `packed`, two to a byte;
// if both are null, `operand` has them. `operand` always has their bounds, those of the sum of all draws, and
// the strides of their scales. The scales of values are made as well. Where a value is NaN, all of them are.
// Integers and scales of values are written to where `operand` has an address for them.
struct lowbit_unrounded {
    lowbit_operand operand;
    const float *values, *largest;
    const uint8_t* packed;
    int64_t packed_count;
    lowbit_quantization quantization;
};

// Where forward writes: x with half a byte per element, if not null; the scales of Y, [images, outputs]; and
// the exact sums, their multiples.
struct lowbit_unrounded_results {
    uint8_t* packed;
    float* scales;
    lowbit_multiples multiples;
};

// lowbit_forward_multiples of such operands, with its result; where that is 0, what was written is undefined.
LOWBIT_PUBLIC int32_t lowbit_unrounded_forward(const lowbit_geometry* geometry, const lowbit_unrounded* x,
                                               const lowbit_unrounded* w, const lowbit_unrounded_results* to);

// lowbit_grad_input and lowbit_grad_weight of such operands. Return a status.
LOWBIT_PUBLIC int lowbit_unrounded_grad_input(const lowbit_geometry* geometry, const lowbit_unrounded* dy,
                                              const lowbit_unrounded* w, float* dx);
LOWBIT_PUBLIC int lowbit_unrounded_grad_weight(const lowbit_geometry* geometry, const lowbit_unrounded* dy,
                                               const lowbit_unrounded* x, float* dw);
