// The loops of plane_kernels.h for each instruction set, with AVX2 intrinsics for the correlation.
#include "depthwise/plane_kernels.h"

#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::depthwise {

namespace {

#define LOWBIT_DEPTHWISE_KERNELS(NAME, TARGET, CORRELATE)                                                    \
    namespace NAME {                                                                                         \
    TARGET void pack(const uint8_t* image, int64_t image_bytes, int64_t images, const uint8_t* end,          \
                     const View& view, bool is_signed, int16_t* to) {                                        \
        depthwise::pack(image, image_bytes, images, end, view, is_signed, to);                               \
    }                                                                                                        \
    TARGET void correlate_scaled(const float* plane, int64_t planes, int64_t stride, const int64_t* offsets, \
                                 const float* weights, int64_t taps, const float* scales, int64_t count,     \
                                 float* values) {                                                            \
        depthwise::correlate_scaled(plane, planes, stride, offsets, weights, taps, scales, count, values);   \
    }                                                                                                        \
    TARGET void to_floats(const int16_t* from, int64_t count, float* to) {                                   \
        depthwise::to_floats(from, count, to);                                                               \
    }                                                                                                        \
    template <class T>                                                                                       \
    TARGET void pack_floats(const T* image, int64_t image_size, int64_t images, const T* end,                \
                            const View& view, float* to) {                                                   \
        depthwise::pack_floats<T>(image, image_size, images, end, view, to);                                 \
    }                                                                                                        \
    TARGET void dots(const float* a, const float* plane, const int64_t* offsets, int64_t taps,               \
                     Planes planes, double* totals) {                                                        \
        depthwise::dots(a, plane, offsets, taps, planes, totals);                                            \
    }                                                                                                        \
    TARGET int32_t dot(const int16_t* a, const int16_t* b, int64_t count) {                                  \
        return depthwise::dot(a, b, count);                                                                  \
    }                                                                                                        \
    TARGET void copy_sums(const int32_t* from, const OutputView& target, int64_t* to) {                      \
        depthwise::copy_sums(from, target, to);                                                              \
    }                                                                                                        \
    template <class T>                                                                                       \
    TARGET void dequantize(const T* from, const OutputView& target, float scale, const float* bias,          \
                           float* to) {                                                                      \
        depthwise::dequantize<T>(from, target, scale, bias, to);                                             \
    }                                                                                                        \
    const Kernels kernels = {pack,                                                                           \
                             CORRELATE,                                                                      \
                             correlate_scaled,                                                               \
                             to_floats,                                                                      \
                             pack_floats<float>,                                                             \
                             pack_floats<int8_t>,                                                            \
                             pack_floats<uint8_t>,                                                           \
                             dots,                                                                           \
                             dot,                                                                            \
                             copy_sums,                                                                      \
                             dequantize<int32_t>,                                                            \
                             dequantize<float>};                                                             \
    }

#if LOWBIT_X86

LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load(const int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

LOWBIT_TARGET_AVX2 LOWBIT_INLINE void store(int32_t* to, __m256i sums) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sums);
}

// All taps accumulate in int16.
LOWBIT_TARGET_AVX2 void correlate_acc16(const int16_t* plane, const int64_t* offsets, const int16_t* weights,
                                        int64_t taps, int64_t count, int32_t* sums) {
    for (int64_t i = 0; i < count; i += kStep) {
        __m256i a = _mm256_setzero_si256(), b = a;
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int16_t* from = plane + offsets[tap] + i;
            const __m256i weight = _mm256_set1_epi16(weights[tap]);
            a = _mm256_add_epi16(a, _mm256_mullo_epi16(load(from), weight));
            b = _mm256_add_epi16(b, _mm256_mullo_epi16(load(from + 16), weight));
        }
        store(sums + i, _mm256_cvtepi16_epi32(_mm256_castsi256_si128(a)));
        store(sums + i + 8, _mm256_cvtepi16_epi32(_mm256_extracti128_si256(a, 1)));
        store(sums + i + 16, _mm256_cvtepi16_epi32(_mm256_castsi256_si128(b)));
        store(sums + i + 24, _mm256_cvtepi16_epi32(_mm256_extracti128_si256(b, 1)));
    }
}

// Two taps at a time, interleaved for vpmaddwd, accumulate in int32.
LOWBIT_TARGET_AVX2 void correlate_acc32(const int16_t* plane, const int64_t* offsets, const int16_t* weights,
                                        int64_t taps, int64_t count, int32_t* sums) {
    for (int64_t i = 0; i < count; i += kStep) {
        __m256i found[4] = {};
        for (int64_t tap = 0; tap < taps; tap += 2) {
            const bool two = tap + 1 < taps;
            const int16_t* one = plane + offsets[tap] + i;
            const int16_t* other = plane + offsets[two ? tap + 1 : tap] + i;
            const uint32_t both = uint16_t(weights[tap]) | uint32_t(uint16_t(two ? weights[tap + 1] : 0))
                                                               << 16;
            const __m256i weight = _mm256_set1_epi32(int32_t(both));
            const __m256i a = load(one), b = load(other), c = load(one + 16), d = load(other + 16);
            found[0] = _mm256_add_epi32(found[0], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));
            found[1] = _mm256_add_epi32(found[1], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));
            found[2] = _mm256_add_epi32(found[2], _mm256_madd_epi16(_mm256_unpacklo_epi16(c, d), weight));
            found[3] = _mm256_add_epi32(found[3], _mm256_madd_epi16(_mm256_unpackhi_epi16(c, d), weight));
        }
        // Unpacking works within 128-bit halves: undo its order, pixels 0-3 and 8-11, then 4-7 and 12-15.
        store(sums + i, _mm256_permute2x128_si256(found[0], found[1], 0x20));
        store(sums + i + 8, _mm256_permute2x128_si256(found[0], found[1], 0x31));
        store(sums + i + 16, _mm256_permute2x128_si256(found[2], found[3], 0x20));
        store(sums + i + 24, _mm256_permute2x128_si256(found[2], found[3], 0x31));
    }
}

LOWBIT_TARGET_AVX2 void correlate_avx2(const int16_t* plane, const int64_t* offsets, const int16_t* weights,
                                       int64_t taps, int64_t budget, int64_t count, int32_t* sums) {
    if (taps <= budget) {
        correlate_acc16(plane, offsets, weights, taps, count, sums);
    } else {
        correlate_acc32(plane, offsets, weights, taps, count, sums);
    }
}

LOWBIT_DEPTHWISE_KERNELS(avx2, LOWBIT_TARGET_AVX2, correlate_avx2)

#endif

void correlate_baseline(const int16_t* plane, const int64_t* offsets, const int16_t* weights, int64_t taps,
                        int64_t, int64_t count, int32_t* sums) {
    depthwise::correlate(plane, offsets, weights, taps, count, sums);
}

LOWBIT_DEPTHWISE_KERNELS(baseline, , correlate_baseline)

}  // namespace

const Kernels& kernels_for(InstructionSet isa) {
#if LOWBIT_X86
    if (isa != InstructionSet::baseline) return avx2::kernels;
#endif
    (void)isa;
    return baseline::kernels;
}

}  // namespace lowbit::depthwise
