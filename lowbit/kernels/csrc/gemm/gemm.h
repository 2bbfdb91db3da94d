// Convolutions and matrix products of small integers: forward, grad_input and grad_weight.
//
// Integers in, exact integer sums, fp32 out. A Linear layer is a 1x1 convolution of 1x1 images.
//
// What is computed, `sum` being the exact sum of integer products:
//   forward      y  = fp32(sum) * (scale_x * scale_w) + bias      scale_x by n; scale_w by n (output channel)
//   grad_input   dx = fp32(sum) * (scale_dy * scale_w)            scale_dy by n; scale_w by c (input channel)
//                With scale_dy by pixel, the exact sum of every tap over the output channels is multiplied by
//                the scale of its pixel of dy; taps are added in fp32, kernel row by row, and the total is
//                multiplied by scale_w.
//   grad_weight  dw = fp32(sum) * (scale_dy * scale_x)            scale_dy by c; scale_x by c
//                With a scale by n, the exact sums of every sample times (scale_dy * scale_x) are added in
//                fp32, sample after sample.
// A sum that does not fit into int32 is continued in int64 before it becomes fp32.
//
// Layouts in memory: inputs and output gradients are NCHW, weights are [outputs, channels / groups, kernel_h,
// kernel_w], int8, or uint8 where `lowest` is not negative. Packed, channels are innermost, four bytes (or
// two int16) to a 32-bit word, because the multiply-add instructions (vpmaddubsw, vpdpbusd, tdpbusd) sum
// inside such words.
//
// How forward and grad_input work (implicit GEMM; no im2col matrix is written):
//   gemm.cpp             dispatch: depthwise/, winograd/, or the direct computation below
//   conv_gemm.h, .cpp    the loops: a product as convolutions over one padded image, in strips of pixels and
//                        panels of 16 output channels; a filter tap is a byte offset into the packed image
//   packing.h, .cpp      images to padded NHWC, weights to panels of 16 channels
//   microkernel.h        exact sums of a strip times a panel; one file per instruction set
//   epilogue.cpp         int32 sums to scaled fp32 in NCHW
// grad_weight reduces over pixels instead of channels, so it packs differently and has its own kernels:
//   grad_weight.h, .cpp  layouts, choices and loops;  grad_weight_packing.cpp;  grad_weight_kernel.cpp
// unrounded.h, .cpp      the same products of fp32 tensors, which are quantized on the way
//
// How a variant is chosen: by the instruction set, and by the bounds `lowest` and `highest` of the operands,
// which tell how many products fit into an int16 or int32 accumulator (choose_microkernel, wgrad::Plan). With
// VNNI or AMX, bytes are multiplied into int32 directly. With AVX2 alone, 4-bit operands accumulate in int16
// for many steps, and 8-bit operands whose products do not fit are widened to int16; for these, Winograd
// saves multiplications.
#pragma once
#include "common/common.h"

struct lowbit_geometry {
    int64_t batch, channels, height, width;
    int64_t outputs, kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_top, pad_bottom, pad_left, pad_right;
    int64_t dilation_h, dilation_w;
    int64_t groups;
};

// Integers with promised bounds. The scale of element (n, c, h, w) is
// scale[n * of_n + c * of_c + (h * width + w) * of_pixel], with 0 for an axis that shares it. Of a weight, n
// is the output channel, c the input channel within its group, and of_pixel is 0.
struct lowbit_operand {
    const void* integers;
    int32_t lowest, highest;
    const float* scale;
    int64_t of_n, of_c, of_pixel;
};

// Return a status (common.h). Where `sums` is not null, only the exact sums are written there and scales are
// not read: tests compare every kernel with them.
LOWBIT_PUBLIC int lowbit_forward(const lowbit_geometry* geometry, const lowbit_operand* x,
                                 const lowbit_operand* w, const float* bias, float* y, int64_t* sums);
LOWBIT_PUBLIC int lowbit_grad_input(const lowbit_geometry* geometry, const lowbit_operand* dy,
                                    const lowbit_operand* w, float* dx, int64_t* sums);
LOWBIT_PUBLIC int lowbit_grad_weight(const lowbit_geometry* geometry, const lowbit_operand* dy,
                                     const lowbit_operand* x, float* dw, int64_t* sums);

// The exact sums of forward as multiples of its scales. Returns 1, or a negative status, or 0 if these bits
// do not hold all of them, or if winograd/ does not compute this product: then nothing is. Null asks for
// that.
LOWBIT_PUBLIC int32_t lowbit_forward_multiples(const lowbit_geometry* geometry, const lowbit_operand* x,
                                               const lowbit_operand* w, const lowbit_multiples* multiples);

// The number of multiplications of a product (0: forward, 1: grad_input, 2: grad_weight) of these operands:
// one per term of its sums, or fewer where winograd/ applies. Negative on failure.
LOWBIT_PUBLIC int64_t lowbit_multiplications(const lowbit_geometry* geometry, int32_t product,
                                             const lowbit_operand* first, const lowbit_operand* second);

// Peak throughput of the multiply-add instructions on registers alone, an upper bound for every kernel: runs
// so many iterations of a loop for operands of `bits` (4, 8; 32 is fp32) with the instruction set in use, and
// returns the multiply-adds of one iteration; 0 for portable code.
LOWBIT_PUBLIC int64_t lowbit_ceiling(int32_t bits, int64_t iterations);
