// 3x3 convolutions with stride 1 of fp32 by Winograd's F(4x4, 3x3): 36 multiplications per 4x4 outputs
// instead of 144.
//
// Results differ from a direct convolution in their last bits: transforms and sums round. Use it where
// operands are no integers, whose sums would have to be exact: for gradients of quantization-aware training,
// and for fp32 networks without gradients. All tensors are contiguous, in NCHW; weights are [outputs,
// channels, 3, 3]. Channels and outputs are multiples of 16.
//
// A tile is 4x4 outputs, made of 6x6 inputs; both become 36 points. Along one axis, with inputs d, kernel g,
// products m and outputs y; the points are 0, 1, -1, 2, -2 and infinity:
//   input     4 d0 - 5 d2 + d4,  -4 d1 - 4 d2 + d3 + d4,  4 d1 - 4 d2 - d3 + d4,
//             -2 d1 - d2 + 2 d3 + d4,  2 d1 - d2 - 2 d3 + d4,  4 d1 - 5 d3 + d5
//   kernel    g0 / 4,  -(g0 + g1 + g2) / 6,  -(g0 - g1 + g2) / 6,
//             (g0 + 2 g1 + 4 g2) / 24,  (g0 - 2 g1 + 4 g2) / 24,  g2
//   output    m0 + m1 + m2 + m3 + m4,  m1 - m2 + 2 (m3 - m4),  m1 + m2 + 4 (m3 + m4),
//             m1 - m2 + 8 (m3 - m4) + m5
// grad_input is a forward product of dY with the kernel turned around. grad_weight multiplies the points of
// x, as above, by those of dY, which are the transpose of the output's transform; its result goes through the
// transpose of the kernel's.
//
// Files:
//   fp32_winograd.cpp    the three C functions: blocks of tiles, in parallel
//   tile_transforms.h    the transforms, and the change between NCHW and channels last
//   products.cpp         the matrix products of points, for each instruction set
#pragma once
#include "common/common.h"

// Y = X * W. Input rows above and columns left of the image count as zeros, `top` and `left` of them (0 to
// 2), and so do those that the outputs need below and to the right.
struct lowbit_fp32_conv {
    int64_t images, channels, height, width;  // of X
    int64_t outputs, out_height, out_width;   // of Y
    int64_t top, left;
};

// Whether this processor has fused multiply-add in vectors: without, the functions work but are slow.
LOWBIT_PUBLIC int lowbit_fp32_winograd_pays(void);

LOWBIT_PUBLIC int lowbit_fp32_winograd_forward(const lowbit_fp32_conv* of, const float* x, const float* w,
                                               float* y);
LOWBIT_PUBLIC int lowbit_fp32_winograd_grad_input(const lowbit_fp32_conv* of, const float* dy, const float* w,
                                                  float* dx);
LOWBIT_PUBLIC int lowbit_fp32_winograd_grad_weight(const lowbit_fp32_conv* of, const float* x,
                                                   const float* dy, float* dw);
