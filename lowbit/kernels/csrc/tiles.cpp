// Which inner loop fits a product, and the portable ones.
#include "tiles.h"

#include <string.h>

namespace lowbit::conv {
namespace {

constexpr int64_t kLargestInt16 = 32767;
constexpr int64_t kFewSteps = 4;  // fewer than these, and a register per step is better than memory for int32

template <class Source, class Weight>
void run_baseline(const Strip& strip) {
    constexpr int kTogether = 4 / sizeof(Source);
    for (int64_t p = 0; p < strip.pixels; p++) {
        const uint8_t* panel = strip.panel;
        int32_t sums[kPanel];
        memcpy(sums, strip.start, sizeof sums);
        for (int64_t s = 0; s < strip.count; s++) {
            const uint8_t* from = strip.source + strip.places[p] + strip.segments[s].offset;
            for (int64_t step = 0; step < strip.segments[s].steps; step++, from += 4, panel += 4 * kPanel) {
                Source a[kTogether];
                Weight b[kPanel * kTogether];
                memcpy(a, from, sizeof a);
                memcpy(b, panel, sizeof b);
                for (int64_t c = 0; c < kPanel; c++) {
                    for (int i = 0; i < kTogether; i++) sums[c] += a[i] * b[c * kTogether + i];
                }
            }
        }
        memcpy(strip.sums + p * kPanel, sums, sizeof sums);
    }
}

#if LOWBIT_X86
Choice bytes_avx2(int64_t steps) {
    if (steps >= kFewSteps) return {Packed::bytes, {1, run_narrow_avx2, run_narrow_avx2, steps}};
    if (steps >= 2) return {Packed::bytes, {1, run_pairs_avx2, run_pairs_avx2, 0}};
    return {Packed::bytes, {1, run_single_avx2, run_single_avx2, 0}};
}
#endif

}  // namespace

void run_bytes_baseline(const Strip& strip) { run_baseline<uint8_t, int8_t>(strip); }

void run_words_baseline(const Strip& strip) { run_baseline<int16_t, int16_t>(strip); }

Tiles words_tiles() {
#if LOWBIT_X86
    if (instruction_set() != InstructionSet::baseline) return {1, run_words_avx2, run_words_avx2, 0};
#endif
    return {1, run_words_baseline, run_words_baseline, 0};
}

Choice choose_tiles(int64_t largest_source, int64_t largest_weight, bool weight_fits_int8) {
    const InstructionSet set = instruction_set();
#if LOWBIT_X86
    if (set != InstructionSet::baseline) {
        const int64_t pair = 2 * largest_source * largest_weight;
        const int64_t steps = pair ? kLargestInt16 / pair : kLargestInt16;
        const Choice words = {Packed::words, words_tiles()};
        if (!weight_fits_int8) return words;
        if (set >= InstructionSet::avx512vnni) {
            return {Packed::bytes, {2, run_two_panels_avx512vnni, run_bytes_avx512vnni, 0}};
        }
#if LOWBIT_AVXVNNI
        if (set == InstructionSet::avxvnni) return {Packed::bytes, {1, run_bytes_avxvnni, run_bytes_avxvnni, 0}};
#endif
        return steps ? bytes_avx2(steps) : words;
    }
#endif
    (void)set, (void)largest_source, (void)largest_weight;
    if (weight_fits_int8) return {Packed::bytes, {1, run_bytes_baseline, run_bytes_baseline, 0}};
    return {Packed::words, words_tiles()};
}

}  // namespace lowbit::conv
