// Squeeze-and-excitation of QAT: y = x * gate, with one gate per channel of each image,
//   gate = quantized(hardsigmoid(quantized(W2 * quantized(relu(W1 * quantized(mean of x) + b1)) + b2))).
// Tensors but x are small, so that the time goes to calls: here, all of forward is one, and backward is
// three, between which callers multiply by matrices in floats. Each step is a function of another header,
// whose bits it has.
#pragma once
#include "quantize/quantize.h"

// A quantized 1x1 convolution: `input` quantizes its input; the integers of the weight are at most `highest`
// in magnitude, with a scale per output.
struct lowbit_gate_layer {
    lowbit_observer* input;
    const int8_t* weight;
    const float *scales, *bias;
    int32_t highest;
};

// `output` and `gate` quantize what goes into the hard sigmoid and what comes out, each or null. What
// backward needs is kept in `floats`, 4 * images * channels + images * hidden of them, and in as many `bytes`
// and images * hidden more.
struct lowbit_excitation {
    int64_t images, channels, inner, hidden;
    lowbit_gate_layer first, second;
    lowbit_observer *output, *gate;
    float* floats;
    uint8_t* bytes;
};

// Returns 1; or 0, with all averages as before, if a value is NaN, which no integer stands for; or a negative
// status.
LOWBIT_PUBLIC int32_t lowbit_excitation_forward(const lowbit_excitation* of, const float* x, float* y);

// From dy: dx without its part through the mean, the gradient of the second layer's output, and the values of
// that layer's weight and input; if wanted, the gradients of its bias and of the alphas behind it.
LOWBIT_PUBLIC int lowbit_excitation_backward_gate(const lowbit_excitation* of, const float* x,
                                                  const float* dy, float* dx, float* doutput, float* weight,
                                                  float* input, float* dbias, float* doutput_alpha,
                                                  float* dgate_alpha);

// The same of the first layer: `doutput` is that of the second layer's input, and becomes that of the first
// layer's output.
LOWBIT_PUBLIC int lowbit_excitation_backward_hidden(const lowbit_excitation* of, float* doutput,
                                                    float* weight, float* input, float* dbias, float* dalpha);

// Adds the part of dx through the mean; `dmean` is the gradient of the first layer's input, and is
// overwritten.
LOWBIT_PUBLIC int lowbit_excitation_backward_mean(const lowbit_excitation* of, float* dmean, float* dx,
                                                  float* dalpha);
