// Epilogues of products in portable C++, AVX2 and AVX-512: the same operations in the same order. See
// requantize.h.
#include "runtime/requantize.h"

#include "common/cpu.h"

#include <cmath>
#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::runtime {
namespace {

// rint(v / scale) between the grid's bounds, without the zero point.
float steps_of(float v, const Grid& grid) {
    const float lowest = static_cast<float>(grid.lowest - grid.zero);
    const float highest = static_cast<float>(grid.highest - grid.zero);
    float steps = v / grid.scale;
    steps = steps > lowest ? steps : lowest;  // also for NaN
    steps = steps < highest ? steps : highest;
    return std::nearbyintf(steps);
}

void requantize_portable(const Epilogue& e, const int32_t* sums, const StripOutput& out) {
    for (int64_t p = 0; p < out.pixels; p++, sums += kChannels) {
        for (int64_t c = 0; c < out.written; c++) {
            float v = static_cast<float>(sums[c]) * e.scale[out.channel + c] + e.bias[out.channel + c];
            v = apply(e.first, v);
            if (e.has_middle) v = steps_of(v, e.middle) * e.middle.scale;
            if (e.has_residual) v += dequantize_one(out.residual[out.residual_offsets[p] + c], e.residual);
            v = apply(e.second, v);
            out.to[out.offsets[p] + c] =
                static_cast<uint8_t>(static_cast<int>(steps_of(v, e.out)) + e.out.zero);
        }
    }
}

#if LOWBIT_X86

// ---- AVX2 and FMA: two registers of 8 channels.

LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE __m256 between_avx2(__m256 x, float lowest, float highest) {
    return _mm256_min_ps(_mm256_set1_ps(highest), _mm256_max_ps(_mm256_set1_ps(lowest), x));
}

LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE __m256 apply_avx2(const Unary& unary, __m256 v) {
    switch (unary.function) {
        case Function::clamp:
            return between_avx2(v, unary.a, unary.b);
        case Function::hard_swish:
            return _mm256_div_ps(_mm256_mul_ps(v, between_avx2(_mm256_add_ps(v, _mm256_set1_ps(3)), 0, 6)),
                                 _mm256_set1_ps(6));
        case Function::hard_sigmoid:
            return between_avx2(
                _mm256_add_ps(_mm256_mul_ps(v, _mm256_set1_ps(unary.a)), _mm256_set1_ps(unary.b)), 0, 1);
        default:
            return v;
    }
}

struct GridAvx2 {
    __m256 scale, high, low, lowest, highest;
    bool is_exact;
};

LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE GridAvx2 grid_avx2(const Grid& grid, const Reciprocal& reciprocal) {
    return {_mm256_set1_ps(grid.scale),
            _mm256_set1_ps(reciprocal.high),
            _mm256_set1_ps(reciprocal.low),
            _mm256_set1_ps(static_cast<float>(grid.lowest - grid.zero)),
            _mm256_set1_ps(static_cast<float>(grid.highest - grid.zero)),
            reciprocal.is_exact};
}

LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE __m256 divide_avx2(__m256 v, const GridAvx2& grid) {
    return _mm256_fmadd_ps(v, grid.high, _mm256_mul_ps(v, grid.low));
}

LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE __m256i steps_avx2(__m256 v, const GridAvx2& grid) {
    const __m256 steps = grid.is_exact ? divide_avx2(v, grid) : _mm256_div_ps(v, grid.scale);
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(steps, grid.lowest), grid.highest));
}

LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE void store_avx2(__m128i bytes, int64_t written, uint8_t* to) {
    if (written == kChannels) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    } else {
        alignas(16) uint8_t all[16];
        _mm_store_si128(reinterpret_cast<__m128i*>(all), bytes);
        memcpy(to, all, static_cast<size_t>(written));
    }
}

// Scale, bias and rounding alone: a pixel.
struct ShortAvx2 {
    LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE ShortAvx2(const Epilogue& e, int64_t channel)
        : grid(grid_avx2(e.out, e.out_reciprocal)) {
        for (int half = 0; half < 2; half++) {
            scales[half] = _mm256_loadu_ps(e.scale.data() + channel + 8 * half);
            biases[half] = _mm256_loadu_ps(e.bias.data() + channel + 8 * half);
        }
    }
    LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE void operator()(const int32_t* sums, __m256i (&steps)[2]) const {
        for (int half = 0; half < 2; half++) {
            const __m256i sum = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums) + half);
            const __m256 v =
                _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), scales[half]), biases[half]);
            steps[half] = _mm256_cvtps_epi32(divide_avx2(v, grid));
        }
    }
    GridAvx2 grid;
    __m256 scales[2], biases[2];
};

LOWBIT_TARGET_AVX2_FMA void requantize_short_avx2(const Epilogue& e, const int32_t* sums,
                                                  const StripOutput& out) {
    const ShortAvx2 round(e, out.channel);
    const BytePack pack(e.out.zero, e.lowest, e.highest);
    __m256i a[2], b[2];
    int64_t p = 0;
    for (; p + 1 < out.pixels; p += 2) {
        round(sums + p * kChannels, a);
        round(sums + (p + 1) * kChannels, b);
        const __m256i bytes = pack(a, b);
        store_avx2(_mm256_castsi256_si128(bytes), out.written, out.to + out.offsets[p]);
        store_avx2(_mm256_extracti128_si256(bytes, 1), out.written, out.to + out.offsets[p + 1]);
    }
    if (p == out.pixels) return;
    round(sums + p * kChannels, a);
    store_avx2(pack(a), out.written, out.to + out.offsets[p]);
}

template <bool kSum>
LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE void requantize_avx2(const Epilogue& e, const int32_t* sums,
                                                          const StripOutput& out) {
    const float *scale = e.scale.data() + out.channel, *bias = e.bias.data() + out.channel;
    const __m256 scales[2] = {_mm256_loadu_ps(scale), _mm256_loadu_ps(scale + 8)};
    const __m256 biases[2] = {_mm256_loadu_ps(bias), _mm256_loadu_ps(bias + 8)};
    const GridAvx2 grid = grid_avx2(e.out, e.out_reciprocal),
                   middle = grid_avx2(e.middle, e.middle_reciprocal);
    const BytePack pack(e.out.zero, e.lowest, e.highest);
    const __m256 residual_scale = _mm256_set1_ps(e.residual.scale);
    const __m256i residual_zero = _mm256_set1_epi32(e.residual.zero);
    for (int64_t p = 0; p < out.pixels; p++, sums += kChannels) {
        __m256i steps[2];
        for (int half = 0; half < 2; half++) {
            const __m256i sum = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums) + half);
            __m256 v = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), scales[half]), biases[half]);
            v = apply_avx2(e.first, v);
            if (kSum) {
                if (e.has_middle) v = _mm256_mul_ps(_mm256_cvtepi32_ps(steps_avx2(v, middle)), middle.scale);
                const uint8_t* from = out.residual + out.residual_offsets[p] + 8 * half;
                const __m256i bytes =
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
                const __m256 steps_from_zero = _mm256_cvtepi32_ps(_mm256_sub_epi32(bytes, residual_zero));
                v = apply_avx2(e.second, _mm256_add_ps(v, _mm256_mul_ps(steps_from_zero, residual_scale)));
            }
            steps[half] = steps_avx2(v, grid);
        }
        store_avx2(pack(steps), out.written, out.to + out.offsets[p]);
    }
}

LOWBIT_TARGET_AVX2_FMA void requantize_plain_avx2(const Epilogue& e, const int32_t* sums,
                                                  const StripOutput& out) {
    requantize_avx2<false>(e, sums, out);
}
LOWBIT_TARGET_AVX2_FMA void requantize_sum_avx2(const Epilogue& e, const int32_t* sums,
                                                const StripOutput& out) {
    requantize_avx2<true>(e, sums, out);
}

// ---- AVX-512: one register of 16 channels. The intrinsics without masks cause warnings of GCC 12.

constexpr __mmask16 kAll = 0xffff;

LOWBIT_TARGET_AVX512 LOWBIT_INLINE __m512 between_avx512(__m512 x, float lowest, float highest) {
    return _mm512_maskz_min_ps(kAll, _mm512_set1_ps(highest),
                               _mm512_maskz_max_ps(kAll, _mm512_set1_ps(lowest), x));
}

LOWBIT_TARGET_AVX512 LOWBIT_INLINE __m512 apply_avx512(const Unary& unary, __m512 v) {
    switch (unary.function) {
        case Function::clamp:
            return between_avx512(v, unary.a, unary.b);
        case Function::hard_swish:
            return _mm512_div_ps(_mm512_mul_ps(v, between_avx512(_mm512_add_ps(v, _mm512_set1_ps(3)), 0, 6)),
                                 _mm512_set1_ps(6));
        case Function::hard_sigmoid:
            return between_avx512(
                _mm512_add_ps(_mm512_mul_ps(v, _mm512_set1_ps(unary.a)), _mm512_set1_ps(unary.b)), 0, 1);
        default:
            return v;
    }
}

LOWBIT_TARGET_AVX512 LOWBIT_INLINE __m512 divide_avx512(__m512 v, const Reciprocal& reciprocal) {
    return _mm512_fmadd_ps(v, _mm512_set1_ps(reciprocal.high),
                           _mm512_mul_ps(v, _mm512_set1_ps(reciprocal.low)));
}

LOWBIT_TARGET_AVX512 LOWBIT_INLINE __m512i steps_avx512(__m512 v, const Grid& grid,
                                                        const Reciprocal& reciprocal) {
    const __m512 lowest = _mm512_set1_ps(static_cast<float>(grid.lowest - grid.zero));
    const __m512 highest = _mm512_set1_ps(static_cast<float>(grid.highest - grid.zero));
    const __m512 steps =
        reciprocal.is_exact ? divide_avx512(v, reciprocal) : _mm512_div_ps(v, _mm512_set1_ps(grid.scale));
    return _mm512_maskz_cvtps_epi32(
        kAll, _mm512_maskz_min_ps(kAll, _mm512_maskz_max_ps(kAll, steps, lowest), highest));
}

// Scale, bias and rounding alone.
LOWBIT_TARGET_AVX512 void requantize_short_avx512(const Epilogue& e, const int32_t* sums,
                                                  const StripOutput& out) {
    const __m512 scale = _mm512_loadu_ps(e.scale.data() + out.channel);
    const __m512 bias = _mm512_loadu_ps(e.bias.data() + out.channel);
    const __m512i zero = _mm512_set1_epi32(e.out.zero);
    const __m512i lowest = _mm512_set1_epi32(e.lowest), highest = _mm512_set1_epi32(e.highest);
    const __mmask16 mask = static_cast<__mmask16>((1u << out.written) - 1);
    for (int64_t p = 0; p < out.pixels; p++, sums += kChannels) {
        const __m512 sum = _mm512_maskz_cvtepi32_ps(kAll, _mm512_loadu_si512(sums));
        const __m512 v = _mm512_add_ps(_mm512_mul_ps(sum, scale), bias);
        const __m512i steps = _mm512_maskz_cvtps_epi32(kAll, divide_avx512(v, e.out_reciprocal));
        const __m512i bytes = _mm512_maskz_min_epi32(
            kAll, _mm512_maskz_max_epi32(kAll, _mm512_add_epi32(steps, zero), lowest), highest);
        _mm512_mask_cvtepi32_storeu_epi8(out.to + out.offsets[p], mask, bytes);
    }
}

template <bool kSum>
LOWBIT_TARGET_AVX512 LOWBIT_INLINE void requantize_avx512(const Epilogue& e, const int32_t* sums,
                                                          const StripOutput& out) {
    const __m512 scale = _mm512_loadu_ps(e.scale.data() + out.channel);
    const __m512 bias = _mm512_loadu_ps(e.bias.data() + out.channel);
    const __m512i zero = _mm512_set1_epi32(e.out.zero);
    const __mmask16 mask = static_cast<__mmask16>((1u << out.written) - 1);
    for (int64_t p = 0; p < out.pixels; p++, sums += kChannels) {
        __m512 v = _mm512_maskz_cvtepi32_ps(kAll, _mm512_loadu_si512(sums));
        v = apply_avx512(e.first, _mm512_add_ps(_mm512_mul_ps(v, scale), bias));
        if (kSum) {
            if (e.has_middle) {
                v = _mm512_mul_ps(
                    _mm512_maskz_cvtepi32_ps(kAll, steps_avx512(v, e.middle, e.middle_reciprocal)),
                    _mm512_set1_ps(e.middle.scale));
            }
            const uint8_t* from = out.residual + out.residual_offsets[p];
            const __m512i bytes =
                _mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
            const __m512 steps =
                _mm512_maskz_cvtepi32_ps(kAll, _mm512_sub_epi32(bytes, _mm512_set1_epi32(e.residual.zero)));
            v = apply_avx512(e.second,
                             _mm512_add_ps(v, _mm512_mul_ps(steps, _mm512_set1_ps(e.residual.scale))));
        }
        const __m512i bytes = _mm512_add_epi32(steps_avx512(v, e.out, e.out_reciprocal), zero);
        _mm512_mask_cvtusepi32_storeu_epi8(out.to + out.offsets[p], mask, bytes);
    }
}

LOWBIT_TARGET_AVX512 void requantize_plain_avx512(const Epilogue& e, const int32_t* sums,
                                                  const StripOutput& out) {
    requantize_avx512<false>(e, sums, out);
}
LOWBIT_TARGET_AVX512 void requantize_sum_avx512(const Epilogue& e, const int32_t* sums,
                                                const StripOutput& out) {
    requantize_avx512<true>(e, sums, out);
}

#endif

LOWBIT_INLINE void values_loop(const Epilogue& e, const int32_t* sums, int64_t pixels, int64_t channel,
                               int64_t channels, const int64_t* offsets, int64_t plane, float* to) {
    const float *scale = e.scale.data() + channel, *bias = e.bias.data() + channel;
    const bool clamps = e.first.function == Function::clamp;
    for (int64_t p = 0; p < pixels; p++, sums += kChannels) {
        float values[kChannels];
        for (int64_t c = 0; c < kChannels; c++) {
            const float v = static_cast<float>(sums[c]) * scale[c] + bias[c];
            const float above = v < e.first.a ? e.first.a : v,
                        between = above > e.first.b ? e.first.b : above;
            values[c] = clamps ? between : v;
        }
        if (!clamps && e.first.function != Function::identity) {
            for (int64_t c = 0; c < kChannels; c++) values[c] = apply(e.first, values[c]);
        }
        if (plane == 1 && channels == kChannels) {
            memcpy(to + offsets[p], values, sizeof values);
        } else {
            for (int64_t c = 0; c < channels; c++) to[offsets[p] + c * plane] = values[c];
        }
    }
}

void values_portable(const Epilogue& e, const int32_t* sums, int64_t pixels, int64_t channel,
                     int64_t channels, const int64_t* offsets, int64_t plane, float* to) {
    values_loop(e, sums, pixels, channel, channels, offsets, plane, to);
}
#if LOWBIT_X86
LOWBIT_TARGET_AVX2 void values_avx2(const Epilogue& e, const int32_t* sums, int64_t pixels, int64_t channel,
                                    int64_t channels, const int64_t* offsets, int64_t plane, float* to) {
    values_loop(e, sums, pixels, channel, channels, offsets, plane, to);
}
#endif

}  // namespace

void Epilogue::prepare(double largest) {
    out_reciprocal = Reciprocal(out);
    if (has_middle) middle_reciprocal = Reciprocal(middle);
    lowest = static_cast<uint8_t>(out.lowest), highest = static_cast<uint8_t>(out.highest);
    const bool clamps = first.function == Function::clamp || first.function == Function::identity;
    if (has_residual || !clamps || !out_reciprocal.is_exact) return;
    for (size_t c = 0; c < scale.size(); c++) {
        const double bound =
            std::fabs(static_cast<double>(scale[c])) * largest + std::fabs(static_cast<double>(bias[c]));
        if (!(bound / out.scale < 1e9)) return;  // also for NaN
    }
    is_short = true;
    if (first.function == Function::identity) return;
    // Rounding is monotone: the bounds of the activation may be applied behind it.
    lowest = quantize_one(first.a, out), highest = quantize_one(first.b, out);
}

void requantize(const Epilogue& epilogue, const int32_t* sums, const StripOutput& out) {
#if LOWBIT_X86
    const InstructionSet isa = instruction_set();
    const bool sum = epilogue.has_residual;
    static const bool has_fma = __builtin_cpu_supports("fma");
    if (isa >= InstructionSet::avx512) {
        (epilogue.is_short ? requantize_short_avx512
         : sum             ? requantize_sum_avx512
                           : requantize_plain_avx512)(epilogue, sums, out);
    } else if (isa >= InstructionSet::avx2 && has_fma) {
        (epilogue.is_short ? requantize_short_avx2
         : sum             ? requantize_sum_avx2
                           : requantize_plain_avx2)(epilogue, sums, out);
    } else {
        requantize_portable(epilogue, sums, out);
    }
#else
    requantize_portable(epilogue, sums, out);
#endif
    if (!epilogue.has_table) return;
    if (out.written == kChannels) return epilogue.table.apply_at(out.offsets, out.pixels, out.to);
    for (int64_t p = 0; p < out.pixels; p++) {
        uint8_t* bytes = out.to + out.offsets[p];
        for (int64_t c = 0; c < out.written; c++) bytes[c] = epilogue.table[bytes[c]];
    }
}

void dequantize_sums(const Epilogue& epilogue, const int32_t* sums, int64_t pixels, int64_t channel,
                     int64_t channels, const int64_t* offsets, int64_t plane, float* to) {
#if LOWBIT_X86
    if (instruction_set() != InstructionSet::baseline) {
        return values_avx2(epilogue, sums, pixels, channel, channels, offsets, plane, to);
    }
#endif
    values_portable(epilogue, sums, pixels, channel, channels, offsets, plane, to);
}

}  // namespace lowbit::runtime
