// The layers between convolutions in training: batch norm (with residual sum and ReLU in the same pass), ReLU and max-pool,
// forward and backward, on contiguous fp32 in NCHW.
//
// What backward needs from forward is small: batch norm's input and two numbers per channel, one bit per element for ReLU,
// one byte per output for max-pool. An input that is a product of small integers is saved as int16 (`multiples`).
//
// Sums are in double, in the same 16 partial sums for every instruction set; a channel is summed by one thread. Files:
// batch_norm.h, relu.h, max_pool.h have the loops; norm.cpp compiles them for baseline, AVX2 and AVX-512 and runs them in
// parallel over channels, chunks or planes.
#pragma once
#include "common/channel_blocks.h"

// Sizes as lowbit_layout has them: [images, channels, pixels]. `weight` may be null (1), `bias` too (0).
// `other`, or null, is added to what is normalized, a residual sum; then a ReLU follows if it is `rectified`.
// `scale`, or null, is what x may be whole multiples of: a number for each channel of each image.
struct lowbit_batch_norm {
    const float *x, *weight, *bias;
    lowbit_layout layout;
    float epsilon, momentum;
    const float *other, *scale;
    int32_t rectified;
};

// y = (x - mean) * inverse * weight + bias + other, where `mean` and `inverse`, 1 / sqrt(variance + epsilon) with
// the variance over all of count = images * pixels, are written, one per channel. Of the running statistics,
// `momentum` times the old ones and 1 - momentum times the batch's. `bits` are the ReLU's if it is behind a sum:
// (pixels + 7) / 8 bytes for each channel of each image. `largest`, if wanted, is the largest magnitude of y in each
// channel of each image. Returns 1 if `multiples`, wanted where there is a scale, times the scale are x, and 0 if
// two bytes do not hold it.
LOWBIT_PUBLIC int32_t lowbit_batch_norm_forward(const lowbit_batch_norm* of, float* y, float* mean, float* inverse,
                                                float* running_mean, float* running_variance, uint8_t* bits,
                                                int16_t* multiples, float* largest);

// From dy: dx, dweight and dbias, each if wanted. `dother` is what of dy comes through the ReLU; without a ReLU it
// is dy, and not written. Where there are `multiples`, they are taken and not x. `largest` is as above, of dx.
LOWBIT_PUBLIC int lowbit_batch_norm_backward(const lowbit_batch_norm* of, const uint8_t* bits,
                                              const int16_t* multiples, const float* mean, const float* inverse,
                                              const float* dy, float* dx, float* dweight, float* dbias,
                                              float* dother, float* largest);

// y = x where x > 0, else 0 (NaN, too, as in Paddle); `bits`, (count + 7) / 8 bytes, say where, lowest first.
LOWBIT_PUBLIC int lowbit_relu_forward(const float* x, float* y, uint8_t* bits, int64_t count);

// dx = dy * 1 or dy * 0: what is not finite shows everywhere.
LOWBIT_PUBLIC int lowbit_relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count);

// Windows of kernel_h x kernel_w, both 2 or 3, in steps of stride_h and stride_w, which are 1 or 2; the first
// begins `top` rows above and `left` columns before the image. Every window holds a pixel of the image.
struct lowbit_pool {
    int64_t planes, height, width, out_height, out_width;
    int64_t kernel_h, kernel_w, stride_h, stride_w, top, left;
};

// y = the largest of each window, and its place in the window, row by row: the first of equals, or of NaNs.
LOWBIT_PUBLIC int lowbit_max_pool_forward(const float* x, float* y, uint8_t* places, const lowbit_pool* of);

// dx: each dy added to the place that its window had its largest at.
LOWBIT_PUBLIC int lowbit_max_pool_backward(const float* dy, const uint8_t* places, float* dx,
                                            const lowbit_pool* of);
