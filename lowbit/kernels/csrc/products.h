// The C interface of the integer products: small integers in, exact sums, fp32 out. Plain C, raw pointers.
//
// An operand is contiguous int8 (or uint8, where its lowest is not below 0), as it lies in Paddle: an input and
// an output gradient [batch, channels, height, width], a weight [outputs, channels / groups, kernel_h, kernel_w].
// A Linear layer is a 1x1 convolution of 1x1 images. `lowest` and `highest` are promised bounds of the integers;
// the number of products that fit into a narrow sum is worked out from them.
//
// The scale of element (n, c, h, w) is scale[n * of_n + c * of_c + (h * width + w) * of_pixel], with 0 for an
// axis that shares it. Of a weight, n is the output channel, c the input channel (of its group's own), and
// of_pixel is 0.
//
// What is computed, `sum` being exact:
//   forward      y  = fp32(sum) * (scale_x * scale_w) + bias            scale_x by n; scale_w by n
//   grad_input   dx = fp32(sum) * (scale_dy * scale_w)                  scale_dy by n; scale_w by c
//                with scale_dy by pixel: the exact sums over the output channels of every tap, times the scale of
//                the pixel of dy, are added in fp32, tap after tap (kernel row by row), then times scale_w
//   grad_weight  dw = fp32(sum) * (scale_dy * scale_x)                  scale_dy by c; scale_x by c
//                with a scale by n: the exact sums of every sample, times (scale_dy * scale_x), are added in fp32,
//                sample after sample
// Where `sums` is not null, the exact sums are written there and nothing else is done (scales are not read): for
// tests, which hold every kernel to them. A sum that leaves int32 is kept in 64 bits before it becomes fp32.
//
// No axis is 0. Results are the same bits for every instruction set and every number of threads.
#pragma once
#include "kernels.h"

struct lowbit_geometry {
    int64_t batch, channels, height, width;
    int64_t outputs, kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_top, pad_bottom, pad_left, pad_right;
    int64_t dilation_h, dilation_w;
    int64_t groups;
};

struct lowbit_operand {
    const void* integers;
    int32_t lowest, highest;
    const float* scale;
    int64_t of_n, of_c, of_pixel;
};

// 0, or -1 when memory runs out.
LOWBIT_PUBLIC int lowbit_forward(const lowbit_geometry* geometry, const lowbit_operand* x, const lowbit_operand* w,
                                 const float* bias, float* y, int64_t* sums);
LOWBIT_PUBLIC int lowbit_grad_input(const lowbit_geometry* geometry, const lowbit_operand* dy,
                                    const lowbit_operand* w, float* dx, int64_t* sums);
LOWBIT_PUBLIC int lowbit_grad_weight(const lowbit_geometry* geometry, const lowbit_operand* dy,
                                     const lowbit_operand* x, float* dw, int64_t* sums);

// How many multiplications a product (0: forward, 1: grad_input, 2: grad_weight) of these operands takes: one for
// every term of its sums, or fewer where Winograd's transforms are used (winograd.h).
LOWBIT_PUBLIC int64_t lowbit_multiplications(const lowbit_geometry* geometry, int32_t product,
                                             const lowbit_operand* first, const lowbit_operand* second);
