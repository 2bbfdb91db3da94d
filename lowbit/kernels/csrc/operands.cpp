// The passes of operands.h, compiled for each instruction set; which one runs is chosen in variants.cpp.
#include "operands.h"

#include "hadamard_bodies.h"
#include "instruction_set.h"
#include "integer_bodies.h"
#include "packed_bodies.h"
#include "range_bodies.h"

namespace {

using lowbit::Turns;

typedef decltype(lowbit::Conversion::convert) Convert;

struct Passes {
    decltype(&lowbit_ranges) ranges;
    decltype(&lowbit_mse_ranges) mse_ranges;
    decltype(&lowbit_scales) scales;
    decltype(&lowbit_from_integers) from_integers;
    decltype(&lowbit_pack_nibbles) pack_nibbles;
    decltype(&lowbit_unpack_nibbles) unpack_nibbles;
    decltype(&lowbit_hadamard) hadamard;
    Convert log[3], small[3], large[3];  // for as many draws
};

#define LOWBIT_CONVERT(NAME, TARGET, ...)                                                                     \
    TARGET int32_t NAME(const float* x, uint8_t* q, const float* scales, bool each, int32_t count,            \
                        float lowest, float highest, const lowbit::RandomKey* keys, uint32_t index) {         \
        return lowbit::convert<__VA_ARGS__>(x, q, scales, each, count, lowest, highest, keys, index);         \
    }

#define LOWBIT_PASSES(NAME, TARGET)                                                                           \
    namespace NAME {                                                                                          \
    LOWBIT_CONVERT(nearest, TARGET, lowbit::Nearest)                                                          \
    LOWBIT_CONVERT(one_draw, TARGET, lowbit::Stochastic<1>)                                                   \
    LOWBIT_CONVERT(two_draws, TARGET, lowbit::Stochastic<2>)                                                  \
    LOWBIT_CONVERT(small_one_draw, TARGET, lowbit::StochasticSmall<1>)                                        \
    LOWBIT_CONVERT(small_two_draws, TARGET, lowbit::StochasticSmall<2>)                                       \
    LOWBIT_CONVERT(log_nearest, TARGET, lowbit::LogNearest)                                                   \
    LOWBIT_CONVERT(log_one_draw, TARGET, lowbit::LogStochastic<1>)                                            \
    LOWBIT_CONVERT(log_two_draws, TARGET, lowbit::LogStochastic<2>)                                           \
    TARGET void ranges(const float* x, float* out, const lowbit_axes* axes, int32_t is_signed) {              \
        lowbit::ranges(x, out, *axes, is_signed);                                                             \
    }                                                                                                         \
    TARGET void mse_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t lowest,            \
                           int32_t highest, int32_t turns) {                                                  \
        lowbit::mse_ranges(x, ranges, *axes, lowest, highest, turns);                                         \
    }                                                                                                         \
    TARGET void scales(const float* ranges, float* out, int64_t count, int32_t lowest, int32_t highest) {     \
        lowbit::scales(ranges, out, count, lowest, highest);                                                  \
    }                                                                                                         \
    TARGET void from_integers(const void* q, float* y, const float* scales, const lowbit_axes* axes,          \
                              int32_t is_signed) {                                                            \
        lowbit::from_integers(static_cast<const uint8_t*>(q), y, scales, *axes, is_signed);                   \
    }                                                                                                         \
    TARGET void pack_nibbles(const void* q, uint8_t* packed, int64_t count) {                                 \
        lowbit::pack_nibbles(static_cast<const uint8_t*>(q), packed, count);                                  \
    }                                                                                                         \
    TARGET void unpack_nibbles(const uint8_t* packed, void* q, int64_t count, int32_t is_signed) {            \
        lowbit::unpack_nibbles(packed, static_cast<uint8_t*>(q), count, is_signed);                           \
    }                                                                                                         \
    TARGET void hadamard(const float* x, float* y, int64_t before, int64_t size, int64_t after,               \
                         int64_t block) {                                                                     \
        lowbit::hadamard(x, y, before, size, after, block);                                                   \
    }                                                                                                         \
    const Passes passes = {ranges,                                                                            \
                           mse_ranges,                                                                        \
                           scales,                                                                            \
                           from_integers,                                                                     \
                           pack_nibbles,                                                                      \
                           unpack_nibbles,                                                                    \
                           hadamard,                                                                          \
                           {log_nearest, log_one_draw, log_two_draws},                                        \
                           {nearest, small_one_draw, small_two_draws},                                        \
                           {nearest, one_draw, two_draws}};                                                   \
    }

#if LOWBIT_X86
LOWBIT_PASSES(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
LOWBIT_PASSES(avx2, __attribute__((target("avx2"))))
#endif
LOWBIT_PASSES(baseline, )

const Passes& current() {
#if LOWBIT_X86
    const lowbit::InstructionSet set = lowbit::instruction_set();
    if (set >= lowbit::InstructionSet::avx512) return avx512::passes;
    if (set >= lowbit::InstructionSet::avx2) return avx2::passes;
#endif
    return baseline::passes;
}

}  // namespace

void lowbit_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t is_signed) {
    current().ranges(x, ranges, axes, is_signed);
}

void lowbit_mse_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t lowest, int32_t highest,
                       int32_t turns) {
    current().mse_ranges(x, ranges, axes, lowest, highest, turns);
}

void lowbit_scales(const float* ranges, float* scales, int64_t count, int32_t lowest, int32_t highest) {
    current().scales(ranges, scales, count, lowest, highest);
}

int64_t lowbit_to_integers(const float* x, void* q, const float* scales, const lowbit_axes* axes,
                           const lowbit_levels* levels, const lowbit_draw* draws, int32_t count_draws, uint64_t first) {
    const Turns turns(*axes);
    if (!turns.elements()) return 0;
    const bool is_small = levels->lowest > -128 && levels->highest < 128;
    const Passes& passes = current();
    const Convert* const by = levels->is_log ? passes.log : is_small ? passes.small : passes.large;
    const lowbit::Conversion conversion = {by[count_draws], float(levels->lowest), float(levels->highest), draws,
                                           count_draws};
    return conversion.all(x, static_cast<uint8_t*>(q), scales, turns, first);
}

void lowbit_from_integers(const void* q, float* y, const float* scales, const lowbit_axes* axes, int32_t is_signed) {
    current().from_integers(q, y, scales, axes, is_signed);
}

void lowbit_pack_nibbles(const void* q, uint8_t* packed, int64_t count) { current().pack_nibbles(q, packed, count); }

void lowbit_unpack_nibbles(const uint8_t* packed, void* q, int64_t count, int32_t is_signed) {
    current().unpack_nibbles(packed, q, count, is_signed);
}

void lowbit_hadamard(const float* x, float* y, int64_t before, int64_t size, int64_t after, int64_t block) {
    current().hadamard(x, y, before, size, after, block);
}
