// Micro-kernels of grad_weight: a tile of sums, channels of x times outputs of dy, stays in registers during
// the reduction.
//
// A word of x is broadcast over a register; the words of 8 or 16 outputs are one load. With AVX2, 6 channels
// times 16 outputs are 12 registers of sums; two for dy, one for x and one product make the 16 that there
// are.
#include "gemm/amx.h"
#include "gemm/grad_weight.h"

#include <cstring>
#if LOWBIT_X86
#include <immintrin.h>
#endif

#define LOWBIT_EACH_CHANNEL \
    LOWBIT_UNROLLED         \
    for (int c = 0; c < kChannels; ++c)
#define LOWBIT_EACH_PANEL \
    LOWBIT_UNROLLED       \
    for (int p = 0; p < kPanels; ++p)

namespace lowbit::wgrad {

namespace {

LOWBIT_INLINE int32_t word_at(const uint8_t* at) {
    int32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

// Portable: pairs of int16, separated by shifts.
typedef int32_t Ints __attribute__((vector_size(kPanel * sizeof(int32_t))));

template <int kChannels>
void portable_int16(const KernelArgs& t) {
    Ints sums[kChannels] = {};
    const uint8_t* dy = t.dy;
    for (int64_t row = 0; row < t.rows; ++row) {
        const uint8_t* x = t.x + row * t.x_row;
        for (int64_t i = 0; i < t.words; ++i, x += kWord, dy += kPanel * kWord) {
            Ints both;
            memcpy(&both, dy, sizeof both);
            const Ints low = (both << 16) >> 16, high = both >> 16;
            LOWBIT_EACH_CHANNEL {
                int16_t pair[2];
                memcpy(pair, x + c * t.x_channel, sizeof pair);
                sums[c] += low * int32_t(pair[0]) + high * int32_t(pair[1]);
            }
        }
    }
    LOWBIT_EACH_CHANNEL {
        int32_t* at = t.sums + c * t.sums_channel;
        for (int64_t o = 0; o < kPanel; ++o) at[o] += sums[c][o];
    }
}

#if LOWBIT_X86

// Inline assembly keeps the compiler from reassociating the additions, which would spill registers.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add16(__m256i& sum, __m256i term) {
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(term));
}
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add32(__m256i& sum, __m256i term) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term));
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load256(const void* at) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add_to(int32_t* at, __m256i term) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_add_epi32(load256(at), term));
}

struct Int16 {
    static LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add(__m256i& sum, __m256i x, __m256i dy) {
        add32(sum, _mm256_madd_epi16(x, dy));
    }
};

struct Int8 {
    static LOWBIT_TARGET_AVX2 LOWBIT_INLINE void add(__m256i& sum, __m256i x, __m256i dy) {
        add32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, dy), _mm256_set1_epi16(1)));
    }
};

// Accumulates in int32 registers; `Op` multiplies two registers of words and adds to a third.
#define LOWBIT_ACC32_KERNEL(NAME, TARGET)                                                 \
    template <class Op, int kChannels>                                                    \
    TARGET void NAME(const KernelArgs& t) {                                               \
        __m256i sums[kChannels][2];                                                       \
        LOWBIT_EACH_CHANNEL sums[c][0] = sums[c][1] = _mm256_setzero_si256();             \
        const uint8_t* dy = t.dy;                                                         \
        for (int64_t row = 0; row < t.rows; ++row) {                                      \
            const uint8_t* x = t.x + row * t.x_row;                                       \
            for (int64_t i = 0; i < t.words; ++i, x += kWord, dy += kPanel * kWord) {     \
                const __m256i first = load256(dy), second = load256(dy + 32);             \
                LOWBIT_EACH_CHANNEL {                                                     \
                    const __m256i word = _mm256_set1_epi32(word_at(x + c * t.x_channel)); \
                    Op::add(sums[c][0], word, first);                                     \
                    Op::add(sums[c][1], word, second);                                    \
                }                                                                         \
            }                                                                             \
        }                                                                                 \
        LOWBIT_EACH_CHANNEL {                                                             \
            add_to(t.sums + c * t.sums_channel, sums[c][0]);                              \
            add_to(t.sums + c * t.sums_channel + 8, sums[c][1]);                          \
        }                                                                                 \
    }

LOWBIT_ACC32_KERNEL(avx2_acc32, LOWBIT_TARGET_AVX2)

#if LOWBIT_AVXVNNI
struct Vnni256 {
    static LOWBIT_TARGET_AVXVNNI LOWBIT_INLINE void add(__m256i& sum, __m256i x, __m256i dy) {
        sum = _mm256_dpbusd_avx_epi32(sum, x, dy);
    }
};
LOWBIT_ACC32_KERNEL(avxvnni_acc32, LOWBIT_TARGET_AVXVNNI)
#endif

// Accumulates in int16 registers, added to the int32 sums in memory before `budget` words could overflow.
template <int kChannels>
LOWBIT_TARGET_AVX2 void avx2_acc16(const KernelArgs& t) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums[kChannels][2];
    LOWBIT_EACH_CHANNEL sums[c][0] = sums[c][1] = _mm256_setzero_si256();
    const uint8_t* dy = t.dy;
    int64_t left = t.budget;
    for (int64_t row = 0; row < t.rows; ++row) {
        const uint8_t* x = t.x + row * t.x_row;
        for (int64_t to_do = t.words; to_do > 0;) {
            const int64_t now = to_do < left ? to_do : left;
            for (int64_t i = 0; i < now; ++i, x += kWord, dy += kPanel * kWord) {
                const __m256i first = load256(dy), second = load256(dy + 32);
                LOWBIT_EACH_CHANNEL {
                    const __m256i word = _mm256_set1_epi32(word_at(x + c * t.x_channel));
                    add16(sums[c][0], _mm256_maddubs_epi16(word, first));
                    add16(sums[c][1], _mm256_maddubs_epi16(word, second));
                }
            }
            to_do -= now;
            left -= now;
            if (left && (to_do || row + 1 < t.rows)) continue;
            LOWBIT_EACH_CHANNEL {
                add_to(t.sums + c * t.sums_channel, _mm256_madd_epi16(sums[c][0], ones));
                add_to(t.sums + c * t.sums_channel + 8, _mm256_madd_epi16(sums[c][1], ones));
                sums[c][0] = sums[c][1] = _mm256_setzero_si256();
            }
            left = t.budget;
        }
    }
}

template <int kChannels, int kPanels>
LOWBIT_TARGET_AVX512VNNI void avx512_vnni(const KernelArgs& t) {
    __m512i sums[kChannels][kPanels];
    LOWBIT_EACH_CHANNEL { LOWBIT_EACH_PANEL sums[c][p] = _mm512_setzero_si512(); }
    const uint8_t* dy = t.dy;
    for (int64_t row = 0; row < t.rows; ++row) {
        const uint8_t* x = t.x + row * t.x_row;
        for (int64_t i = 0; i < t.words; ++i, x += kWord, dy += kPanel * kWord) {
            __m512i outputs[kPanels];
            LOWBIT_EACH_PANEL outputs[p] = _mm512_loadu_si512(dy + p * t.dy_panel);
            LOWBIT_EACH_CHANNEL {
                const __m512i word = _mm512_set1_epi32(word_at(x + c * t.x_channel));
                LOWBIT_EACH_PANEL sums[c][p] = _mm512_dpbusd_epi32(sums[c][p], word, outputs[p]);
            }
        }
    }
    LOWBIT_EACH_CHANNEL {
        LOWBIT_EACH_PANEL {
            int32_t* at = t.sums + c * t.sums_channel + p * kPanel;
            _mm512_storeu_si512(at, _mm512_add_epi32(_mm512_loadu_si512(at), sums[c][p]));
        }
    }
}

#endif

#define LOWBIT_UP_TO_6(F) {F(1), F(2), F(3), F(4), F(5), F(6)}
#define LOWBIT_UP_TO_12(F) {F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), F(9), F(10), F(11), F(12)}

#define LOWBIT_PORTABLE(N) portable_int16<N>
const KernelFunction kPortable[] = {LOWBIT_PORTABLE(1), LOWBIT_PORTABLE(2), LOWBIT_PORTABLE(3),
                                    LOWBIT_PORTABLE(4)};
#if LOWBIT_X86
#define LOWBIT_INT16(N) avx2_acc32<Int16, N>
#define LOWBIT_INT8_ACC16(N) avx2_acc16<N>
#define LOWBIT_INT8_ACC32(N) avx2_acc32<Int8, N>
#define LOWBIT_ONE_PANEL(N) avx512_vnni<N, 1>
#define LOWBIT_TWO_PANELS(N) avx512_vnni<N, 2>
const KernelFunction kInt16[] = LOWBIT_UP_TO_6(LOWBIT_INT16);
const KernelFunction kInt8Acc16[] = LOWBIT_UP_TO_6(LOWBIT_INT8_ACC16);
const KernelFunction kInt8Acc32[] = LOWBIT_UP_TO_6(LOWBIT_INT8_ACC32);
const KernelFunction kOnePanel[] = LOWBIT_UP_TO_12(LOWBIT_ONE_PANEL);
const KernelFunction kTwoPanels[] = LOWBIT_UP_TO_12(LOWBIT_TWO_PANELS);
#if LOWBIT_AVXVNNI
#define LOWBIT_VNNI256(N) avxvnni_acc32<Vnni256, N>
const KernelFunction kVnni256[] = LOWBIT_UP_TO_6(LOWBIT_VNNI256);
#endif
#endif

}  // namespace

KernelFunction kernel_function(Method method, InstructionSet isa, int64_t channels, int64_t panels) {
    (void)method, (void)panels;
    if (isa == InstructionSet::baseline) return kPortable[channels - 1];
#if LOWBIT_X86
    if (method == Method::int16) return kInt16[channels - 1];
    if (method == Method::int8_acc16) return kInt8Acc16[channels - 1];
    if (method == Method::int8_acc32) return kInt8Acc32[channels - 1];
#if LOWBIT_AVXVNNI
    if (isa == InstructionSet::avxvnni) return kVnni256[channels - 1];
#endif
    return (panels == 2 ? kTwoPanels : kOnePanel)[channels - 1];
#else
    return nullptr;
#endif
}

int64_t max_kernel_channels(Method method, InstructionSet isa) {
    if (isa == InstructionSet::baseline) return 4;
    return method == Method::vnni && isa >= InstructionSet::avx512vnni ? 12 : 6;
}

}  // namespace lowbit::wgrad

#if LOWBIT_AMX
namespace lowbit::wgrad {
namespace {

// Loads or stores the sums of left tile kTile / kRights and panel kTile % kRights.
template <int kLefts, int kRights, bool kLoad, int kTile = 0>
LOWBIT_AMX_INLINE void move_sums(int32_t* const* sums, int64_t stride) {
    int32_t* at = sums[kTile / kRights] + kTile % kRights * kPanel;
    if constexpr (kLoad) {
        amx::load<kTile>(at, stride);
    } else {
        amx::store<kTile>(at, stride);
    }
    if constexpr (kTile + 1 < kLefts * kRights) move_sums<kLefts, kRights, kLoad, kTile + 1>(sums, stride);
}

template <int kLefts, int kRights>
LOWBIT_TARGET_AMX void add(const KernelArgs& t, const uint8_t* const* x, int32_t* const* sums, int64_t tail) {
    amx::LeftTile lefts[kLefts];
    for (int i = 0; i < kLefts; ++i) lefts[i] = {x[i], t.x_channel};
    const int64_t stride = t.sums_channel * int64_t(sizeof(int32_t));
    move_sums<kLefts, kRights, true>(sums, stride);
    const uint8_t* dy = t.dy;
    for (int64_t row = 0; row < t.rows; ++row) {
        dy = amx::add_words<kLefts, kRights>(lefts, dy, t.dy_panel, row * t.x_row, t.words, tail);
    }
    move_sums<kLefts, kRights, false>(sums, stride);
}

}  // namespace

void accumulate_amx(const KernelArgs& tile, const uint8_t* const* x, int32_t* const* sums, int64_t count,
                    int64_t panels, int64_t tail) {
    constexpr decltype(&add<1, 1>) kAdd[][kMaxPanels] = {{add<1, 1>, add<1, 2>, add<1, 3>, add<1, 4>},
                                                         {add<2, 1>, add<2, 2>, nullptr, nullptr},
                                                         {add<3, 1>, nullptr, nullptr, nullptr},
                                                         {add<4, 1>, nullptr, nullptr, nullptr}};
    kAdd[count - 1][panels - 1](tile, x, sums, tail);
}

}  // namespace lowbit::wgrad
#endif
