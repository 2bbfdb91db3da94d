// lowbit_ceiling: the multiply-add instructions on registers alone. Twelve independent sums, or four tiles,
// hide the latency. Inline assembly, since a compiler would remove a loop without effect.
#include "gemm/amx.h"
#include "gemm/gemm.h"

#if LOWBIT_X86
#include <immintrin.h>

namespace {

constexpr int kSums = 12;

// One instruction that multiplies and adds, or two.
#define ONE_STEP(NAME, TARGET, REGISTER, INSTRUCTION, PER_STEP)                                             \
    __attribute__((target(TARGET))) int64_t NAME(int64_t iterations) {                                      \
        REGISTER sums[kSums] = {}, a = {}, b = {};                                                          \
        for (; iterations; iterations--) {                                                                  \
            for (int i = 0; i < kSums; i++) __asm__ volatile(INSTRUCTION : "+v"(sums[i]) : "v"(a), "v"(b)); \
        }                                                                                                   \
        return int64_t{kSums} * PER_STEP;                                                                   \
    }
#define TWO_STEPS(NAME, TARGET, REGISTER, MULTIPLY, ADD, PER_STEP)           \
    __attribute__((target(TARGET))) int64_t NAME(int64_t iterations) {       \
        REGISTER sums[kSums] = {}, a = {}, b = {};                           \
        for (; iterations; iterations--) {                                   \
            for (int i = 0; i < kSums; i++) {                                \
                REGISTER product;                                            \
                __asm__ volatile(MULTIPLY : "=v"(product) : "v"(a), "v"(b)); \
                __asm__ volatile(ADD : "+v"(sums[i]) : "v"(product));        \
            }                                                                \
        }                                                                    \
        return int64_t{kSums} * PER_STEP;                                    \
    }

ONE_STEP(fp32_avx2, "avx2,fma", __m256, "vfmadd231ps %1, %2, %0", 8)
ONE_STEP(fp32_avx512, "avx512f", __m512, "vfmadd231ps %1, %2, %0", 16)
TWO_STEPS(int4_avx2, "avx2", __m256i, "vpmaddubsw %1, %2, %0", "vpaddw %1, %0, %0", 32)
TWO_STEPS(int8_avx2, "avx2", __m256i, "vpmaddwd %1, %2, %0", "vpaddd %1, %0, %0", 16)
#if LOWBIT_AVXVNNI
ONE_STEP(vnni_256, "avx2,avxvnni", __m256i, "%{vex%} vpdpbusd %1, %2, %0", 32)
#endif
ONE_STEP(vnni_512, "avx512f,avx512vnni", __m512i, "vpdpbusd %1, %2, %0", 64)
#if LOWBIT_AMX
LOWBIT_TARGET_AMX int64_t tiles(int64_t iterations) {
    using namespace lowbit::amx;
    const TileConfig config(kRows, 0);
    for (; iterations; iterations--) {
        add_products<0, 4, 5>();
        add_products<1, 4, 5>();
        add_products<2, 4, 5>();
        add_products<3, 4, 5>();
    }
    return 4 * kRows * 16 * kWords * 4;
}
#endif

}  // namespace

int64_t lowbit_ceiling(int32_t bits, int64_t iterations) {
    using lowbit::InstructionSet;
    const InstructionSet isa = lowbit::instruction_set();
    if (isa == InstructionSet::baseline) return 0;
    if (bits == 32) return isa >= InstructionSet::avx512 ? fp32_avx512(iterations) : fp32_avx2(iterations);
#if LOWBIT_AMX
    if (isa == InstructionSet::amx) return tiles(iterations);
#endif
    if (isa == InstructionSet::avx512vnni) return vnni_512(iterations);
#if LOWBIT_AVXVNNI
    if (isa == InstructionSet::avxvnni) return vnni_256(iterations);
#endif
    return bits <= 4 ? int4_avx2(iterations) : int8_avx2(iterations);
}
#else
int64_t lowbit_ceiling(int32_t, int64_t) { return 0; }
#endif
