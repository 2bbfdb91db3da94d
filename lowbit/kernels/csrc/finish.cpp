// Finishing in portable C++, and the choice of the instruction set; see finish.h.
#include "finish.h"

namespace lowbit::conv {
namespace {

#if LOWBIT_X86
bool has_avx2() { return instruction_set() != InstructionSet::baseline; }
bool has_avx512() { return instruction_set() >= InstructionSet::avx512; }
#endif

template <class Sum>
void finish_portable(const Sum* sums, const Planes& planes) {
    for (int64_t c = 0; c < planes.channels; c++) {
        float* to = planes.first + c * planes.plane;
        for (int64_t p = 0; p < planes.pixels; p++) {
            const float value = static_cast<float>(sums[p * kPanel + c]) * planes.scale[c];
            to[planes.targets ? planes.targets[p] : p] = planes.bias ? value + planes.bias[c] : value;
        }
    }
}

template <class Sum>
void add_portable(const Sum* sums, const float* scale, int64_t pixels, float* totals) {
    for (int64_t p = 0; p < pixels; p++) {
        for (int64_t c = 0; c < kPanel; c++) {
            totals[p * kPanel + c] += static_cast<float>(sums[p * kPanel + c]) * scale[p];
        }
    }
}

}  // namespace

void finish(const int32_t* sums, const Planes& planes) {
#if LOWBIT_X86
    if (has_avx512()) return finish_avx512(sums, planes);
    if (has_avx2()) return finish_avx2(sums, planes);
#endif
    finish_portable(sums, planes);
}

void finish(const float* sums, const Planes& planes) {
#if LOWBIT_X86
    if (has_avx512()) return finish_avx512(sums, planes);
    if (has_avx2()) return finish_avx2(sums, planes);
#endif
    finish_portable(sums, planes);
}

void finish(const int64_t* sums, const Planes& planes) { finish_portable(sums, planes); }

void add_scaled(const int32_t* sums, const float* scale, int64_t pixels, float* totals) {
#if LOWBIT_X86
    if (has_avx2()) return add_scaled_avx2(sums, scale, pixels, totals);
#endif
    add_portable(sums, scale, pixels, totals);
}

void add_scaled(const int64_t* sums, const float* scale, int64_t pixels, float* totals) {
    add_portable(sums, scale, pixels, totals);
}

}  // namespace lowbit::conv
