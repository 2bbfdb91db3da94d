// Winograd's transforms, compiled for each instruction set: see variants.cpp for how.
#include "winograd_loops.h"

#include "winograd_tiles.h"

namespace lowbit::winograd {
namespace {

#define LOWBIT_WINOGRAD(NAME, TARGET)                                                                              \
    namespace NAME {                                                                                               \
    template <bool kSigned>                                                                                        \
    TARGET void source(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points, int64_t apart) {    \
        spread_source<kSigned>(rows, row_bytes, tiles, points, apart);                                             \
    }                                                                                                              \
    template <bool kSigned>                                                                                        \
    TARGET void gradient(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points, int64_t apart) {  \
        spread_gradient<kSigned>(rows, row_bytes, tiles, points, apart);                                           \
    }                                                                                                              \
    TARGET void kernel(const int16_t* taps, int64_t channels, int16_t* points, int64_t apart) {                    \
        spread_kernel(taps, channels, points, apart);                                                              \
    }                                                                                                              \
    TARGET void interleave_panels(const int16_t* first, const int16_t* second, int64_t panels, int16_t* to,        \
                                  int64_t panel) {                                                                 \
        for (int64_t i = 0; i < panels; i++) interleave(first + i * kPanel, second + i * kPanel, to + i * panel);  \
    }                                                                                                              \
    TARGET void sums(const int32_t* from, int64_t apart, int64_t* to) { gather_sums(from, apart, to); }            \
    TARGET void values(const int32_t* from, int64_t apart, const float* scales, float scale, const float* bias,    \
                       float* to) {                                                                                \
        gather_values(from, apart, scales, scale, bias, to);                                                       \
    }                                                                                                              \
    TARGET void taps(const int32_t* sums, int64_t apart, int32_t* to) { gather_taps(sums, apart, to); }            \
    const Loops loops = {{source<false>, source<true>}, {gradient<false>, gradient<true>}, kernel,                 \
                         interleave_panels, sums, values, taps};                                                   \
    }

#if LOWBIT_X86
LOWBIT_WINOGRAD(avx2, __attribute__((target("avx2"))))
#endif
LOWBIT_WINOGRAD(baseline, )

}  // namespace

const Loops& loops_of(InstructionSet set) {
#if LOWBIT_X86
    if (set != InstructionSet::baseline) return avx2::loops;
#endif
    (void)set;
    return baseline::loops;
}

}  // namespace lowbit::winograd
