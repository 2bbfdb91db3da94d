// The loops of optimizer.h over a chunk of one parameter.
#pragma once
#include "optimizer/optimizer.h"

#include <cmath>

namespace lowbit::optimizer {

// Elements [first, last) of a parameter.
struct Chunk {
    int64_t first, last;
};

template <bool kHasDecay, bool kIsNesterov>
LOWBIT_INLINE void momentum_update(const lowbit_momentum& of, Chunk chunk) {
    float* __restrict parameter = of.parameter;
    float* __restrict velocity = of.velocity;
    const float* __restrict gradient = of.gradient;
    const float momentum = of.momentum, decay = of.decay, rate = *of.rate;
    for (int64_t i = chunk.first; i < chunk.last; ++i) {
        const float w = parameter[i], g = kHasDecay ? w * decay + gradient[i] : gradient[i];
        const float v = velocity[i] * momentum + g;
        velocity[i] = v;
        parameter[i] = kIsNesterov ? w - (g + v * momentum) * rate : w - rate * v;
    }
}

LOWBIT_INLINE void momentum_update(const lowbit_momentum& of, Chunk chunk) {
    if (of.has_decay) {
        of.is_nesterov ? momentum_update<true, true>(of, chunk) : momentum_update<true, false>(of, chunk);
    } else {
        of.is_nesterov ? momentum_update<false, true>(of, chunk) : momentum_update<false, false>(of, chunk);
    }
}

// Adam's settings of one step, with the bias corrected as Paddle does it.
struct AdamFactors {
    float beta1, beta2, rest1, rest2;  // rest = 1 - beta
    float rate, epsilon, decay;        // rate is negative

    explicit AdamFactors(const lowbit_adam& of)
        : beta1(of.beta1), beta2(of.beta2), rest1(1.0f - of.beta1), rest2(1.0f - of.beta2) {
        const float correction = std::sqrt(1.0f - *of.beta2_power);
        rate = -(*of.rate * (correction / (1.0f - *of.beta1_power)));
        epsilon = of.epsilon * correction;
        decay = *of.rate * of.decay;
    }
};

// a * b + c, rounded once or twice.
template <bool kIsFused>
LOWBIT_INLINE float multiply_add(float a, float b, float c) {
    if constexpr (kIsFused) return __builtin_fmaf(a, b, c);
    return a * b + c;
}

template <bool kIsFused, bool kHasDecay>
LOWBIT_INLINE void adam_update(const lowbit_adam& of, const AdamFactors& factors, Chunk chunk) {
    float* __restrict parameter = of.parameter;
    float* __restrict moment1 = of.moment1;
    float* __restrict moment2 = of.moment2;
    const float* __restrict gradient = of.gradient;
    const AdamFactors use = factors;
    for (int64_t i = chunk.first; i < chunk.last; ++i) {
        const float g = gradient[i];
        float w = parameter[i];
        if constexpr (kHasDecay) w = multiply_add<kIsFused>(-use.decay, w, w);
        const float first = multiply_add<kIsFused>(use.beta1, moment1[i], use.rest1 * g);
        // Fused, Paddle squares the gradient first; else it multiplies from the left.
        const float square = kIsFused ? use.rest2 * (g * g) : use.rest2 * g * g;
        const float second = multiply_add<kIsFused>(use.beta2, moment2[i], square);
        moment1[i] = first;
        moment2[i] = second;
        parameter[i] = multiply_add<kIsFused>(first / (__builtin_sqrtf(second) + use.epsilon), use.rate, w);
    }
}

template <bool kIsFused>
LOWBIT_INLINE void adam_update(const lowbit_adam& of, const AdamFactors& factors, Chunk chunk) {
    of.has_decay ? adam_update<kIsFused, true>(of, factors, chunk)
                 : adam_update<kIsFused, false>(of, factors, chunk);
}

}  // namespace lowbit::optimizer
