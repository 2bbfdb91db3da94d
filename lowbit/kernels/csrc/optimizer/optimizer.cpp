// The C functions of optimizer.h: the loops for each instruction set, in parallel over all parameters.
#include "optimizer/optimizer.h"

#include "common/threads.h"
#include "optimizer/updates.h"

#include <algorithm>
#include <vector>

namespace {

using lowbit::InstructionSet;
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
LOWBIT_OPTIMIZER_KERNELS(avx2, LOWBIT_TARGET_AVX2, __attribute__((target("avx2,fma"))))
#endif
LOWBIT_OPTIMIZER_KERNELS(baseline, , )  // its fused products are the C library's, and slow

const Kernels& kernels() {
    switch (lowbit::instruction_set()) {
#if LOWBIT_X86
        case InstructionSet::amx:
        case InstructionSet::avx512vnni:
        case InstructionSet::avx512:
            return avx512::kernels;
        case InstructionSet::avxvnni:
        case InstructionSet::avx2:
            // The names are two, though only few processors have one without the other.
            return __builtin_cpu_supports("fma") ? avx2::kernels : baseline::kernels;
#endif
        default:
            return baseline::kernels;
    }
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
