// The choice of a micro-kernel, and the portable ones; see microkernel.h.
#include "gemm/microkernel.h"

#include <string.h>

namespace lowbit::gemm {
namespace {

constexpr int64_t kLargestInt16 = 32767;
constexpr int64_t kFewSteps =
    4;  // with fewer steps in int16, int32 sums in registers beat widening to memory

template <class Source, class Weight>
void run_baseline(const Strip& strip) {
    constexpr int kTogether = 4 / sizeof(Source);
    for (int64_t p = 0; p < strip.pixels; p++) {
        const uint8_t* panel = strip.panel;
        uint32_t sums[kPanel];
        memcpy(sums, strip.initial_sums, sizeof sums);
        for (int64_t s = 0; s < strip.count; s++) {
            const uint8_t* from = strip.source + strip.pixel_offsets[p] + strip.segments[s].offset;
            for (int64_t step = 0; step < strip.segments[s].steps; step++, from += 4, panel += 4 * kPanel) {
                Source a[kTogether];
                Weight b[kPanel * kTogether];
                memcpy(a, from, sizeof a);
                memcpy(b, panel, sizeof b);
                for (int64_t c = 0; c < kPanel; c++) {
                    for (int i = 0; i < kTogether; i++)
                        sums[c] += static_cast<uint32_t>(a[i] * b[c * kTogether + i]);
                }
            }
        }
        memcpy(strip.sums + p * kPanel, sums, sizeof sums);
    }
}

#if LOWBIT_X86
MicrokernelChoice int8_avx2_microkernel(int64_t steps) {
    if (steps >= kFewSteps) return {ElementType::int8, {1, run_int8_acc16_avx2, run_int8_acc16_avx2, steps}};
    if (steps >= 2) return {ElementType::int8, {1, run_int8_paired_avx2, run_int8_paired_avx2, 0}};
    return {ElementType::int8, {1, run_int8_acc32_avx2, run_int8_acc32_avx2, 0}};
}
#endif

}  // namespace

void run_int8_baseline(const Strip& strip) { run_baseline<uint8_t, int8_t>(strip); }

void run_int16_baseline(const Strip& strip) { run_baseline<int16_t, int16_t>(strip); }

namespace {

Microkernel int16_microkernel() {
#if LOWBIT_X86
    if (instruction_set() != InstructionSet::baseline) return {1, run_int16_avx2, run_int16_avx2, 0};
#endif
    return {1, run_int16_baseline, run_int16_baseline, 0};
}

}  // namespace

MicrokernelChoice choose_microkernel(int64_t largest_source, int64_t largest_weight, bool weight_fits_int8) {
    const InstructionSet isa = instruction_set();
#if LOWBIT_X86
    if (isa != InstructionSet::baseline) {
        const int64_t pair = 2 * largest_source * largest_weight;
        const int64_t steps = pair ? kLargestInt16 / pair : kLargestInt16;
        const MicrokernelChoice words = {ElementType::int16, int16_microkernel()};
        if (!weight_fits_int8) return words;
        if (isa >= InstructionSet::avx512vnni) {
            return {ElementType::int8, {2, run_int8_two_panels_avx512vnni, run_int8_avx512vnni, 0}};
        }
#if LOWBIT_AVXVNNI
        if (isa == InstructionSet::avxvnni) {
            return {ElementType::int8, {1, run_int8_avxvnni, run_int8_avxvnni, 0}};
        }
#endif
        return steps ? int8_avx2_microkernel(steps) : words;
    }
#endif
    (void)isa, (void)largest_source, (void)largest_weight;
    if (weight_fits_int8) return {ElementType::int8, {1, run_int8_baseline, run_int8_baseline, 0}};
    return {ElementType::int16, int16_microkernel()};
}

}  // namespace lowbit::gemm
