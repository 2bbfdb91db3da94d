// The loops around the weight's gradient, compiled for each instruction set: see variants.cpp for how.
#include "grad_weight_loops.h"

#include "grad_weight_pack.h"
#include "grad_weight_sums.h"

namespace lowbit::weight {

namespace {

#define LOWBIT_WEIGHT_LOOPS(NAME, TARGET)                                                                             \
    namespace NAME {                                                                                                  \
    TARGET void pack_x(const WeightPlan& p, const uint8_t* x, uint8_t* out) { lowbit::weight::pack_x(p, x, out); }    \
    TARGET void pack_dy(const WeightPlan& p, const uint8_t* dy, uint8_t* out) { lowbit::weight::pack_dy(p, dy, out); }\
    TARGET void sum_dy(const WeightPlan& p, const uint8_t* dy, int64_t* out) { lowbit::weight::sum_dy(p, dy, out); }  \
    TARGET void empty(int32_t* narrow, int64_t* wide, const int64_t* shift, int64_t rows, int64_t width) {            \
        lowbit::weight::empty(narrow, wide, shift, rows, width);                                                      \
    }                                                                                                                 \
    template <class T>                                                                                                \
    TARGET void scale(T* sums, const int64_t* shift, const float* scale_dy, const float* scale_x, float* values,      \
                      bool add, int64_t channels, int64_t taps, int64_t width) {                                      \
        lowbit::weight::scale<T>(sums, shift, scale_dy, scale_x, values, add, channels, taps, width);                 \
    }                                                                                                                 \
    template <class T>                                                                                                \
    TARGET void put(const T* from, int64_t rows, int64_t width, T* to, int64_t to_output, int64_t outputs) {          \
        lowbit::weight::put<T>(from, rows, width, to, to_output, outputs);                                            \
    }                                                                                                                 \
    const WeightLoops loops = {pack_x,         pack_dy,        sum_dy,     empty,                                     \
                               scale<int32_t>, scale<int64_t>, put<float>, put<int64_t>};                             \
    }

#if LOWBIT_X86
LOWBIT_WEIGHT_LOOPS(avx2, __attribute__((target("avx2"))))
#endif
LOWBIT_WEIGHT_LOOPS(baseline, )

}  // namespace

const WeightLoops& weight_loops(InstructionSet set) {
#if LOWBIT_X86
    if (set != InstructionSet::baseline) return avx2::loops;
#endif
    (void)set;
    return baseline::loops;
}

}  // namespace lowbit::weight
