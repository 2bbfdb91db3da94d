// One optimizer step for all parameters of a model: Momentum, Adam and AdamW, in place, on contiguous fp32.
//
// Each element goes through the operations of Paddle's CPU kernels in their order, so that the results are
// Paddle's bits. Of Adam, Paddle has two: with AVX-512 its products are fused into the additions after them
// (one rounding), elsewhere they are not; `is_fused` says which is meant, on every instruction set.
//
// optimizer.cpp compiles the loops for baseline, AVX2 and AVX-512, and divides all parameters together into
// chunks for the threads.
#pragma once
#include "common/cpu.h"

// A parameter of Momentum. With decay, the gradient is dW + decay * W.
struct lowbit_momentum {
    float* parameter;
    const float* gradient;
    float* velocity;
    const float* rate;  // one number
    int64_t count;
    float momentum, decay;
    int32_t has_decay, is_nesterov;
};

// velocity = velocity * momentum + gradient; parameter -= rate * velocity, or, with Nesterov's momentum,
// parameter -= (gradient + velocity * momentum) * rate. No memory of one parameter is another one's.
LOWBIT_PUBLIC int lowbit_momentum_step(const lowbit_momentum* parameters, int64_t count);

// A parameter of Adam or, with decay, of AdamW. The powers, one number each, are multiplied by their betas
// after use.
struct lowbit_adam {
    float* parameter;
    const float* gradient;
    float *moment1, *moment2, *beta1_power, *beta2_power;
    const float* rate;  // one number
    int64_t count;
    float beta1, beta2, epsilon, decay;
    int32_t has_decay, is_fused;
};

// moment1 = beta1 * moment1 + (1 - beta1) * gradient; moment2 the same with the gradient's square; parameter
// -= rate' * moment1 / (sqrt(moment2) + epsilon'), where rate' and epsilon' correct the bias of the first
// steps. With decay, the parameter is reduced by rate * decay of itself before.
LOWBIT_PUBLIC int lowbit_adam_step(const lowbit_adam* parameters, int64_t count);
