// The updates of optimizer.h, compiled for each instruction set, in parallel over all parameters.
#include "optimizer/optimizer.h"

#include "common/threads.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lowbit::optimizer {
namespace {

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

}  // namespace
}  // namespace lowbit::optimizer

namespace {

using lowbit::optimizer::AdamFactors;
using lowbit::optimizer::Chunk;

// The loops over a chunk for one instruction set.
struct Kernels {
    void (*momentum)(const lowbit_momentum& of, Chunk chunk);
    void (*adam)(const lowbit_adam& of, const AdamFactors& factors, Chunk chunk);
    void (*fused_adam)(const lowbit_adam& of, const AdamFactors& factors, Chunk chunk);
};

#define LOWBIT_OPTIMIZER_KERNELS(NAME, TARGET, FUSED_TARGET)                                       \
    namespace NAME {                                                                               \
    TARGET void momentum(const lowbit_momentum& of, Chunk chunk) {                                 \
        lowbit::optimizer::momentum_update(of, chunk);                                             \
    }                                                                                              \
    TARGET void adam(const lowbit_adam& of, const AdamFactors& factors, Chunk chunk) {             \
        lowbit::optimizer::adam_update<false>(of, factors, chunk);                                 \
    }                                                                                              \
    FUSED_TARGET void fused_adam(const lowbit_adam& of, const AdamFactors& factors, Chunk chunk) { \
        lowbit::optimizer::adam_update<true>(of, factors, chunk);                                  \
    }                                                                                              \
    const Kernels kernels = {momentum, adam, fused_adam};                                          \
    }

#if LOWBIT_X86
LOWBIT_OPTIMIZER_KERNELS(avx512, LOWBIT_TARGET_AVX512, LOWBIT_TARGET_AVX512)
LOWBIT_OPTIMIZER_KERNELS(avx2, LOWBIT_TARGET_AVX2, LOWBIT_TARGET_AVX2_FMA)
#endif
LOWBIT_OPTIMIZER_KERNELS(baseline, , )  // its fused products are the C library's, and slow

const Kernels& kernels() {
    const Kernels& chosen = LOWBIT_CHOOSE(kernels);
#if LOWBIT_X86
    // FMA is a feature of its own, though few processors have AVX2 without it.
    if (&chosen == &avx2::kernels && !__builtin_cpu_supports("fma")) return baseline::kernels;
#endif
    return chosen;
}

// body(parameter's index, chunk) for chunks that cover all parameters, in parallel.
template <class Parameter, class Body>
void parallel_chunks(const Parameter* parameters, int64_t count, const Body& body) {
    constexpr int64_t kChunk = 1 << 14;
    std::vector<int64_t> ends(static_cast<size_t>(count));  // of each parameter's chunks, counted up
    int64_t chunks = 0;
    for (int64_t i = 0; i < count; ++i) {
        ends[size_t(i)] = chunks += lowbit::ceil_div(parameters[i].count, kChunk);
    }
    lowbit::parallel_for(chunks, [&](int64_t item) {
        const auto found = std::upper_bound(ends.begin(), ends.end(), item);
        const int64_t index = found - ends.begin(), before = index ? ends[size_t(index - 1)] : 0;
        const int64_t first = (item - before) * kChunk;
        body(index, Chunk{first, std::min(first + kChunk, parameters[index].count)});
    });
}

}  // namespace

int lowbit_momentum_step(const lowbit_momentum* parameters, int64_t count) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        parallel_chunks(parameters, count,
                        [&](int64_t index, Chunk chunk) { own.momentum(parameters[index], chunk); });
    });
}

int lowbit_adam_step(const lowbit_adam* parameters, int64_t count) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        const std::vector<AdamFactors> factors(parameters, parameters + count);
        parallel_chunks(parameters, count, [&](int64_t index, Chunk chunk) {
            const lowbit_adam& of = parameters[index];
            (of.is_fused ? own.fused_adam : own.adam)(of, factors[size_t(index)], chunk);
        });
        for (int64_t i = 0; i < count; ++i) {
            *parameters[i].beta1_power *= parameters[i].beta1;
            *parameters[i].beta2_power *= parameters[i].beta2;
        }
    });
}
