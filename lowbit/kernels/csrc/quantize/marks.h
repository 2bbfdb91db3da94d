// Rounding with one scale that marks what was clipped, and the gradients from these marks; the average of
// ranges that gives the scale. Portable, and with AVX2, which processors with AVX-512 use as well.
#pragma once
#include "quantize/bounds.h"

#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit {

// Enters the range of a batch, before it is clipped to alpha, and writes `by`'s bound and scale.
void observe_range(float range, lowbit_observer& by);

constexpr int32_t kMarks = 256;  // values that are taken together: a multiple of kLanes

// At most kMarks values: `y`, `q` or both. Loops of one kind of output each, which compilers vectorize.
template <bool kBound>
LOWBIT_INLINE int32_t mark_some(const float* __restrict x, float* __restrict y, uint8_t* __restrict q,
                                int8_t* __restrict clipped, float s, float lower, float upper, int32_t count,
                                lowbit_grid grid) {
    const float lowest = grid.lowest - 0.5f, highest = grid.highest + 0.5f;
    float quotients[kMarks];
    int32_t is_clipped = 0, nan_count = 0;
    for (int32_t i = 0; i < count; ++i) {
        const float v = (kBound ? clip_to_bound(x[i], lower, upper) : x[i]) / s;
        quotients[i] = v;
        is_clipped |= !(v >= lowest) | !(v <= highest);  // also NaN
        if (kBound) is_clipped |= (x[i] < lower) | (x[i] > upper);
    }
    if (!is_clipped) {
        for (int32_t i = 0; i < count; ++i) clipped[i] = 0;
    } else {
        const int32_t if_below = grid.is_signed ? -1 : 2;
        for (int32_t i = 0; i < count; ++i) {
            const float v = quotients[i];
            int32_t mark = 0;
            if (kBound) {
                mark = x[i] < lower ? if_below : mark;
                mark = x[i] > upper ? 1 : mark;
            }
            mark = v >= lowest ? mark : 2;
            clipped[i] = int8_t(v <= highest ? mark : 2);
            nan_count += v != v;
        }
    }
    for (int32_t i = 0; y && i < count; ++i) {
        y[i] = round_half_even(clip(quotients[i], grid.lowest, grid.highest)) * s;
    }
    for (int32_t i = 0; q && i < count; ++i) {
        float v = quotients[i];
        v = v > grid.lowest ? v : grid.lowest;  // NaN becomes `lowest` here and is set to 0 below
        v = v < grid.highest ? v : grid.highest;
        q[i] = uint8_t(nearest_integer(v));
    }
    for (int32_t i = 0; q && nan_count && i < count; ++i) {
        if (quotients[i] != quotients[i]) q[i] = 0;
    }
    return nan_count;
}

template <bool kBound>
LOWBIT_INLINE int32_t mark_as(const float* x, float* y, uint8_t* q, int8_t* clipped, float scale, float upper,
                              int32_t count, lowbit_grid grid) {
    const float lower = lower_bound(upper, grid), s = kBound ? propagate_nan(upper, scale) : scale;
    int32_t nan_count = 0;
    for (int32_t first = 0; first < count; first += kMarks) {
        const int32_t left = count - first, now = left < kMarks ? left : kMarks;
        nan_count += mark_some<kBound>(x + first, y ? y + first : y, q ? q + first : q, clipped + first, s,
                                       lower, upper, now, grid);
    }
    return nan_count;
}

LOWBIT_INLINE int32_t mark_portable(const float* x, float* y, uint8_t* q, int8_t* clipped, float scale,
                                    const float* bound, int32_t count, lowbit_grid grid) {
    return bound ? mark_as<true>(x, y, q, clipped, scale, *bound, count, grid)
                 : mark_as<false>(x, y, q, clipped, scale, 0.0f, count, grid);
}

// Adds what `count` elements give a bound's gradient: dy with a mark of 1, -dy with a mark of -1.
LOWBIT_INLINE void add_marked(PartialSums& sums, const float* dy, const int8_t* clipped, int64_t count) {
    float terms[kMarks];
    for (int64_t i = 0; i < count; ++i) {
        const float below = clipped[i] == -1 ? -dy[i] : 0.0f;
        terms[i] = clipped[i] == 1 ? dy[i] : below;
    }
    sums.add(terms, count);
}

LOWBIT_INLINE void let_through(const float* dy, const int8_t* clipped, float* dx, int64_t count) {
    LOWBIT_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < count; ++i) dx[i] = clipped[i] == 0 ? dy[i] : 0.0f;
}

LOWBIT_INLINE void marked_grad_portable(const float* dy, const int8_t* clipped, float* dx, double* sum,
                                        int64_t count) {
    PartialSums sums;
    for (int64_t first = 0; first < count; first += kMarks) {
        const int64_t left = count - first, now = left < kMarks ? left : kMarks;
        const float* from = dy + first;
        const int8_t* marks = clipped + first;
        int8_t all = 0;
        for (int64_t i = 0; i < now; ++i) all |= marks[i];
        if (sum && all & 1) add_marked(sums, from, marks, now);  // without 1 and -1, all terms are 0
        if (dx && (all || dx != dy)) let_through(from, marks, dx + first, now);
    }
    if (sum) *sum = sums.total();
}

// The same with AVX2, in one loop. In training something is clipped in most pieces of kMarks values.
#if LOWBIT_X86

// Four registers of eight int32 as 32 bytes.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i pack_bytes(const __m256i (&of)[4], bool is_signed) {
    const __m256i low = _mm256_packs_epi32(of[0], of[1]), high = _mm256_packs_epi32(of[2], of[3]);
    const __m256i bytes = is_signed ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

template <bool kBound>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE int32_t mark_as_avx2(const float* x, float* y, uint8_t* q, int8_t* clipped,
                                                      float s, float upper, int32_t count, lowbit_grid grid) {
    const float lower = lower_bound(upper, grid);
    const __m256 lowers = _mm256_set1_ps(lower), uppers = _mm256_set1_ps(upper), scales = _mm256_set1_ps(s);
    const __m256 lowest = _mm256_set1_ps(grid.lowest), highest = _mm256_set1_ps(grid.highest);
    const __m256 first = _mm256_set1_ps(grid.lowest - 0.5f), last = _mm256_set1_ps(grid.highest + 0.5f);
    const __m256i if_below = _mm256_set1_epi32(grid.is_signed ? -1 : 2), one = _mm256_set1_epi32(1);
    const __m256i lost = _mm256_set1_epi32(2);
    int32_t nan_count = 0, i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256i marks[4], integers[4];
        for (int part = 0; part < 4; ++part) {
            const __m256 given = _mm256_loadu_ps(x + i + 8 * part);
            __m256 inside = given;
            __m256i found = _mm256_setzero_si256();
            if (kBound) {
                // Not a maximum: of -0 and a lower bound of 0, that would be -0.
                inside = _mm256_blendv_ps(given, lowers, _mm256_cmp_ps(given, lowers, _CMP_LE_OQ));
                inside = _mm256_min_ps(uppers, inside);
                const __m256 below = _mm256_cmp_ps(given, lowers, _CMP_LT_OQ);
                const __m256 above = _mm256_cmp_ps(given, uppers, _CMP_GT_OQ);
                found = _mm256_and_si256(_mm256_castps_si256(below), if_below);
                found = _mm256_blendv_epi8(found, one, _mm256_castps_si256(above));
            }
            const __m256 v = _mm256_div_ps(inside, scales);
            const __m256 out =
                _mm256_or_ps(_mm256_cmp_ps(v, first, _CMP_NGE_UQ), _mm256_cmp_ps(v, last, _CMP_NLE_UQ));
            marks[part] = _mm256_blendv_epi8(found, lost, _mm256_castps_si256(out));
            const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
            nan_count += __builtin_popcount(unsigned(_mm256_movemask_ps(is_nan)));
            if (y) {  // NaN stays: of two operands, the second
                const __m256 on_grid = _mm256_min_ps(highest, _mm256_max_ps(lowest, v));
                const __m256 rounded =
                    _mm256_round_ps(on_grid, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
                _mm256_storeu_ps(y + i + 8 * part, _mm256_mul_ps(rounded, scales));
            }
            const __m256 number = _mm256_min_ps(_mm256_max_ps(v, lowest), highest);
            integers[part] = _mm256_andnot_si256(_mm256_castps_si256(is_nan), _mm256_cvtps_epi32(number));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(clipped + i), pack_bytes(marks, true));
        if (q) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i), pack_bytes(integers, grid.lowest < 0));
        }
    }
    if (i < count) {
        nan_count +=
            mark_as<kBound>(x + i, y ? y + i : y, q ? q + i : q, clipped + i, s, upper, count - i, grid);
    }
    return nan_count;
}

LOWBIT_TARGET_AVX2 inline int32_t mark_avx2(const float* x, float* y, uint8_t* q, int8_t* clipped,
                                            float scale, const float* bound, int32_t count,
                                            lowbit_grid grid) {
    if (!bound) return mark_as_avx2<false>(x, y, q, clipped, scale, 0.0f, count, grid);
    return mark_as_avx2<true>(x, y, q, clipped, propagate_nan(*bound, scale), *bound, count, grid);
}

// Of at most kMarks elements.
template <bool kSum>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void marked_grad_of_some(const float* dy, const int8_t* clipped, float* dx,
                                                          __m256d (&sums)[4], int64_t count) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256i one = _mm256_set1_epi32(1), minus_one = _mm256_set1_epi32(-1);
    for (int64_t i = 0; i < count; i += kLanes) {
        LOWBIT_UNROLLED
        for (int half = 0; half < 2; ++half) {
            const int64_t at = i + 8 * half;
            const __m256i marks =
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(clipped + at)));
            const __m256 given = _mm256_loadu_ps(dy + at);
            if (kSum) {
                const __m256 above = _mm256_castsi256_ps(_mm256_cmpeq_epi32(marks, one));
                const __m256 below = _mm256_castsi256_ps(_mm256_cmpeq_epi32(marks, minus_one));
                const __m256 term = _mm256_or_ps(_mm256_and_ps(given, above),
                                                 _mm256_and_ps(_mm256_xor_ps(given, sign), below));
                const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(term));
                const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(term, 1));
                sums[2 * half] = _mm256_add_pd(sums[2 * half], low);
                sums[2 * half + 1] = _mm256_add_pd(sums[2 * half + 1], high);
            }
            if (dx) {
                const __m256i zero = _mm256_cmpeq_epi32(marks, _mm256_setzero_si256());
                _mm256_storeu_ps(dx + at, _mm256_and_ps(given, _mm256_castsi256_ps(zero)));
            }
        }
    }
}

LOWBIT_TARGET_AVX2 inline void marked_grad_avx2(const float* dy, const int8_t* clipped, float* dx,
                                                double* sum, int64_t count) {
    PartialSums sums;
    __m256d parts[4];
    for (int part = 0; part < 4; ++part) parts[part] = _mm256_setzero_pd();
    const int64_t whole = count / kLanes * kLanes;
    for (int64_t first = 0; first < whole; first += kMarks) {
        const int64_t left = whole - first, now = left < kMarks ? left : kMarks;
        const float* from = dy + first;
        const int8_t* marks = clipped + first;
        float* to = dx ? dx + first : nullptr;
        int8_t all = 0;
        for (int64_t i = 0; i < now; ++i) all |= marks[i];
        if (sum && all & 1) {
            marked_grad_of_some<true>(from, marks, to, parts, now);
        } else if (dx && (all || dx != dy)) {
            marked_grad_of_some<false>(from, marks, to, parts, now);
        }
    }
    __builtin_memcpy(&sums.parts, &parts, sizeof parts);
    if (sum) add_marked(sums, dy + whole, clipped + whole, count - whole);
    if (dx) let_through(dy + whole, clipped + whole, dx + whole, count - whole);
    if (sum) *sum = sums.total();
}

#endif

// What to call in code for each instruction set.
struct MarkCalls {
    int32_t (*mark)(const float* x, float* y, uint8_t* q, int8_t* clipped, float scale, const float* bound,
                    int32_t count, lowbit_grid grid);
    // dx, which may be dy, and the sum of dbound, each if wanted.
    void (*marked_grad)(const float* dy, const int8_t* clipped, float* dx, double* sum, int64_t count);
};

inline int32_t mark_baseline(const float* x, float* y, uint8_t* q, int8_t* clipped, float scale,
                             const float* bound, int32_t count, lowbit_grid grid) {
    return mark_portable(x, y, q, clipped, scale, bound, count, grid);
}
inline void marked_grad_baseline(const float* dy, const int8_t* clipped, float* dx, double* sum,
                                 int64_t count) {
    marked_grad_portable(dy, clipped, dx, sum, count);
}

inline MarkCalls mark_calls() {
#if LOWBIT_X86
    if (instruction_set() >= InstructionSet::avx2) return {mark_avx2, marked_grad_avx2};
#endif
    return {mark_baseline, marked_grad_baseline};
}

}  // namespace lowbit
