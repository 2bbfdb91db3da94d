// The layers between convolutions in training: batch norm (with residual sum and ReLU in the same pass),
// ReLU, hard swish, max-pool and products with a number per channel, forward and backward, on contiguous fp32
// in NCHW.
//
// What backward needs from forward is small: batch norm's input and two numbers per channel, one bit per
// element for ReLU, one byte per output for max-pool. An input that is a product of small integers is saved
// as those, two or three bytes each (lowbit_multiples).
//
// Sums are in double, in the same 16 partial sums for every instruction set; a channel is summed by one
// thread. Files: batch_norm.h (with activations), batch_norm_backward.h, quantized_norm.h, max_pool.h and
// channel_product.h have the loops, pair_sums.h the sums; norm.cpp compiles them for baseline, AVX2 and
// AVX-512 and runs them in parallel over channels, chunks or planes. excitation.h calls some of them
// together.
#pragma once
#include "common/channel_blocks.h"
#include "quantize/quantize.h"

// Windows of kernel_h x kernel_w, 2 or 3 each, with strides of 1 or 2. The first starts `top` rows above and
// `left` columns before the image. Every window contains a pixel of the image.
struct lowbit_pool {
    int64_t planes, height, width, out_height, out_width;
    int64_t kernel_h, kernel_w, stride_h, stride_w, top, left;
};

// The layout is [images, channels, pixels]. Null: `weight` is 1, `bias` is 0. `other`, if given, is a
// residual that is added after normalization; an activation follows, after a residual only a ReLU. `scale`,
// if given, has one value per channel of each image, of which x may be integer multiples. `pool`, if given,
// is a max-pool of the ReLU's result, whose planes are the channels of all images.
enum lowbit_activation { LOWBIT_NO_ACTIVATION, LOWBIT_RELU, LOWBIT_RELU6, LOWBIT_HARDSWISH };

struct lowbit_batch_norm {
    const float *x, *weight, *bias;
    lowbit_layout layout;
    float epsilon, momentum;
    const float *other, *scale;
    int32_t activation;
    const lowbit_pool* pool;
};

// y = (x - mean) * inverse * weight + bias + other. `mean` and `inverse` = 1 / sqrt(variance + epsilon) are
// written, one per channel, over all images and pixels. Running statistics become momentum * old + (1 -
// momentum) * batch. `bits` are those of a ReLU after a residual sum: (pixels + 7) / 8 bytes per channel of
// each image. `largest`, if wanted, is the largest magnitude of y per channel of each image. With a pool, y
// and `places` are those of lowbit_max_pool_forward, and `largest` is not written. Returns 1 if `multiples`
// (wanted with a scale) times the scale equal x, 0 if these bits do not hold them, or a negative status.
// Where x is null, the `multiples` are given instead of it.
LOWBIT_PUBLIC int32_t lowbit_batch_norm_forward(const lowbit_batch_norm* of, float* y, float* mean,
                                                float* inverse, float* running_mean, float* running_variance,
                                                uint8_t* bits, const lowbit_multiples* multiples,
                                                float* largest, uint8_t* places);

// dx, dweight and dbias, each if wanted; dx may be x. `dother` is dy before the ReLU; without a ReLU it
// equals dy and is not written. `multiples`, if given, replace x. `largest` is that of dx, as above. With a
// pool, dy is that of its outputs, whose `places` forward has written.
LOWBIT_PUBLIC int lowbit_batch_norm_backward(const lowbit_batch_norm* of, const uint8_t* bits,
                                             const lowbit_multiples* multiples, const float* mean,
                                             const float* inverse, const float* dy, float* dx, float* dweight,
                                             float* dbias, float* dother, float* largest,
                                             const uint8_t* places);

// Quantizers before and after the activation that follows a batch norm, each or null, and what forward writes
// for backward: the integers `q` of the first, wanted with an activation, and the marks of both, `clipped`
// and `after_clipped`. `bytes`, if wanted, are the integers of the second.
struct lowbit_norm_quantizers {
    lowbit_observer *before, *after;
    void* q;
    int8_t* clipped;
    void* bytes;
    int8_t* after_clipped;
};

// lowbit_batch_norm_forward with quantizers, which do as lowbit_observe_and_mark, and without a residual and
// a pool; before the activation, none or hard swish, or after any of those above. With a second quantizer, y
// is written only if wanted. `largest` as above, without a second quantizer. Returns how many values were NaN
// when they came to the second quantizer, or a negative status.
LOWBIT_PUBLIC int64_t lowbit_quantized_norm_forward(const lowbit_batch_norm* of,
                                                    const lowbit_norm_quantizers* by, float* mean,
                                                    float* inverse, float* running_mean,
                                                    float* running_variance, float* y, float* largest);

// The same with statistics and scales that are there: to get y after all.
LOWBIT_PUBLIC int64_t lowbit_quantized_norm_values(const lowbit_batch_norm* of,
                                                   const lowbit_norm_quantizers* by, const float* mean,
                                                   const float* inverse, float* y, float* largest);

// dx, which may be dy, and the other gradients if wanted; those of the bounds as lowbit_marked_grad, in
// another order of sums.
LOWBIT_PUBLIC int lowbit_quantized_norm_backward(const lowbit_batch_norm* of,
                                                 const lowbit_norm_quantizers* by, const float* mean,
                                                 const float* inverse, const float* dy, float* dx,
                                                 float* dweight, float* dbias, float* dbound,
                                                 float* after_dbound);

// y = x where x > 0, else 0 (also for NaN, as in Paddle); `bits`, (count + 7) / 8 bytes, tell where, lowest
// bit first.
LOWBIT_PUBLIC int lowbit_relu_forward(const float* x, float* y, uint8_t* bits, int64_t count);

// dx = dy * 1 or dy * 0: Inf and NaN in dy are not hidden.
LOWBIT_PUBLIC int lowbit_relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count);

// y = relu6(x + 3) * x / 6, with Paddle's bits; backward takes x again.
LOWBIT_PUBLIC int lowbit_hardswish_forward(const float* x, float* y, int64_t count);
LOWBIT_PUBLIC int lowbit_hardswish_backward(const float* x, const float* dy, float* dx, int64_t count);

// y = x * scale for rows of `inner` elements with one scale each, as in squeeze-and-excitation. dscale is the
// sum of dy * x, one element after the other in fp32, which is Paddle's order.
LOWBIT_PUBLIC int lowbit_channel_product_forward(const float* x, const float* scale, float* y, int64_t rows,
                                                 int64_t inner);
LOWBIT_PUBLIC int lowbit_channel_product_backward(const float* x, const float* scale, const float* dy,
                                                  float* dx, float* dscale, int64_t rows, int64_t inner);

// y = the largest value of each window; `places` = its index in the window, row by row: the first of equal
// values, or the first NaN.
LOWBIT_PUBLIC int lowbit_max_pool_forward(const float* x, float* y, uint8_t* places, const lowbit_pool* of);

// dx: each dy is added to the pixel that was the largest of its window.
LOWBIT_PUBLIC int lowbit_max_pool_backward(const float* dy, const uint8_t* places, float* dx,
                                           const lowbit_pool* of);

// y = the mean of every row of `inner` elements, added one after the other in fp32; dx = dy / inner. Paddle's
// bits, as global average pooling (channel_mean.cpp).
LOWBIT_PUBLIC int lowbit_channel_mean_forward(const float* x, float* y, int64_t rows, int64_t inner);
LOWBIT_PUBLIC int lowbit_channel_mean_backward(const float* dy, float* dx, int64_t rows, int64_t inner);

// The same dx, added to what is there.
LOWBIT_PUBLIC int lowbit_channel_mean_add(const float* dy, float* dx, int64_t rows, int64_t inner);

// Images of channels x height x width, of which every stride-th pixel is kept in both directions;
// `zero_channels` channels of zeros are put before and as many after them.
struct lowbit_shortcut {
    int64_t images, channels, height, width, stride, zero_channels;
};

// y: the kept pixels between zeros, as in ResNet20's shortcut; dx: dy where pixels were kept, else 0
// (shortcut.cpp).
LOWBIT_PUBLIC int lowbit_shortcut_forward(const float* x, float* y, const lowbit_shortcut* of);
LOWBIT_PUBLIC int lowbit_shortcut_backward(const float* dy, float* dx, const lowbit_shortcut* of);
