// The transforms of F(4x4, 3x3) in integers, sixteen channels at a time.
//
// Along one axis, with pixels d, kernel g, products m and result y; the points are 0, 1, -1, 2, -2 and
// infinity:
//   input     4 d0 - 5 d2 + d4,  -4 d1 - 4 d2 + d3 + d4,  4 d1 - 4 d2 - d3 + d4,
//             -2 d1 - d2 + 2 d3 + d4,  2 d1 - d2 - 2 d3 + d4,  4 d1 - 5 d3 + d5
//   kernel    g0,  g0 + g1 + g2,  g0 - g1 + g2,  g0 + 2 g1 + 4 g2,  g0 - 2 g1 + 4 g2,  g2
//   result    24 y0 = 6 m0 - 4 (m1 + m2) + (m3 + m4)
//             12 y1 = -2 (m1 - m2) + (m3 - m4)
//              6 y2 = -(m1 + m2) + (m3 + m4)
//              6 y3 = -(m1 - m2) + 2 (m3 - m4) + 6 m5
// The kernel's usual factors 1/4, -1/6 and 1/24 are left out of its transform and applied to the result, so
// that everything is an integer. grad_weight is the same with the roles changed:
//   gradient  dy0,  dy0 + dy1 + dy2 + dy3,  dy0 - dy1 + dy2 - dy3,  dy0 + 2 dy1 + 4 dy2 + 8 dy3,
//             dy0 - 2 dy1 + 4 dy2 - 8 dy3,  dy3
//   kernel    24 dg0, 12 dg1 as 24 y0, 12 y1;  6 dg2 = 6 y2 + 6 m5
//
// Sums are integers modulo 2^32, and so is all that is made of them: additions, and divisions by 9, which is
// odd and has an inverse. Only the shifts for the factors of two lose bits: up to 6 of 32. A result of up to
// kLargestSum is therefore exact, however large the sums that it is made of.
#include "winograd/transforms.h"

#include "winograd/result_transforms.h"

#include <cstring>

namespace lowbit::winograd {

LOWBIT_INLINE void get(const int16_t* from, Int16x16& words) { memcpy(&words, from, sizeof words); }

LOWBIT_INLINE void put(int16_t* to, const Int16x16& words) { memcpy(to, &words, sizeof words); }

LOWBIT_INLINE void add_magnitude(const Int16x16& value, Int16x16& sum) {
    const Int16x16 sign = value >> 15;  // -1 or 0
    sum += (value ^ sign) - sign;
}

template <bool kSigned>
LOWBIT_INLINE int64_t sum_magnitudes(const uint8_t* bytes, int64_t count) {
    constexpr int64_t kTurns = 64;  // of two bytes per lane, whose sum int16 holds
    int64_t total = 0, i = 0;
    while (count - i >= 2 * kPanel) {
        Int16x16 sums = {};
        for (int64_t turn = 0; turn < kTurns && count - i >= 2 * kPanel; turn++, i += 2 * kPanel) {
            UInt16x16 pairs;
            memcpy(&pairs, bytes + i, sizeof pairs);
            if (kSigned) {
                add_magnitude(reinterpret_cast<Int16x16>(pairs << 8) >> 8, sums);
                add_magnitude(reinterpret_cast<Int16x16>(pairs) >> 8, sums);
            } else {
                sums += reinterpret_cast<Int16x16>((pairs & 255) + (pairs >> 8));
            }
        }
        for (int lane = 0; lane < kPanel; lane++) total += sums[lane];
    }
    for (; i < count; i++) {
        const int value = kSigned ? static_cast<int8_t>(bytes[i]) : bytes[i];
        total += value < 0 ? -value : value;
    }
    return total;
}

struct SourcePoints {
    LOWBIT_INLINE void operator()(const Int16x16 (&d)[kSide], Int16x16 (&points)[kSide]) const {
        const Int16x16 near = d[4] - d[2], twice = (d[3] - d[1]) << 1;
        const Int16x16 even = d[4] - (d[2] << 2), odd = d[3] - (d[1] << 2);
        points[0] = ((d[0] - d[2]) << 2) + near;
        points[1] = even + odd;
        points[2] = even - odd;
        points[3] = near + twice;
        points[4] = near - twice;
        points[5] = d[5] - d[3] - (twice << 1);
    }
};

struct GradientPoints {
    LOWBIT_INLINE void operator()(const Int16x16 (&d)[kTile], Int16x16 (&points)[kSide]) const {
        const Int16x16 even = d[0] + d[2], odd = d[1] + d[3];
        const Int16x16 even_at_2 = d[0] + (d[2] << 2), odd_at_2 = (d[1] << 1) + (d[3] << 3);
        points[0] = d[0];
        points[1] = even + odd;
        points[2] = even - odd;
        points[3] = even_at_2 + odd_at_2;
        points[4] = even_at_2 - odd_at_2;
        points[5] = d[3];
    }
};

struct KernelPoints {
    LOWBIT_INLINE void operator()(const Int16x16 (&g)[3], Int16x16 (&points)[kSide]) const {
        const Int16x16 even = g[0] + g[2], even_at_2 = g[0] + (g[2] << 2), odd_at_2 = g[1] << 1;
        points[0] = g[0];
        points[1] = even + g[1];
        points[2] = even - g[1];
        points[3] = even_at_2 + odd_at_2;
        points[4] = even_at_2 - odd_at_2;
        points[5] = g[2];
    }
};

// Both axes of a square of kFrom x kFrom vectors, from(i, j), to points[(kSide * i + j) * stride].
template <int kFrom, class Along, class From>
LOWBIT_INLINE void put_points(Along along, From from, int16_t* points, int64_t stride) {
    Int16x16 down[kSide][kFrom];
    LOWBIT_UNROLLED
    for (int j = 0; j < kFrom; j++) {
        Int16x16 column[kFrom], out[kSide];
        LOWBIT_UNROLLED
        for (int i = 0; i < kFrom; i++) from(i, j, column[i]);
        along(column, out);
        LOWBIT_UNROLLED
        for (int i = 0; i < kSide; i++) down[i][j] = out[i];
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < kSide; i++) {
        Int16x16 out[kSide];
        along(down[i], out);
        LOWBIT_UNROLLED
        for (int j = 0; j < kSide; j++) put(points + (kSide * i + j) * stride, out[j]);
    }
}

// to(number of the tile) says where its points go; kFrom is the side of what a tile sees.
template <int kFrom, class Along, class To>
LOWBIT_INLINE void transform_tiles(const PanelPixels& of, Along along, To to) {
    for (int64_t row = 0; row < of.rows; row++) {
        for (int64_t t = 0; t < of.across; t++) {
            const int16_t* corner = of.first + kTile * (row * of.columns + t) * kPanel;
            to(row * of.across + t, [&](int16_t* points, int64_t stride) LOWBIT_INLINE_LAMBDA {
                put_points<kFrom>(
                    along,
                    [&](int i, int j, Int16x16& pixel)
                        LOWBIT_INLINE_LAMBDA { get(corner + (i * of.columns + j) * kPanel, pixel); },
                    points, stride);
            });
        }
    }
}

LOWBIT_INLINE void transform_source(const PanelPixels& of, int16_t* points, int64_t stride) {
    transform_tiles<kSide>(of, SourcePoints(), [&](int64_t t, auto put_to) LOWBIT_INLINE_LAMBDA {
        put_to(points + t * kPanel, stride);
    });
}

// The words of two tiles.
LOWBIT_INLINE void put_pair(const int16_t* first, const int16_t* second, int16_t* to) {
    Int16x16 a, b;
    get(first, a);
    get(second, b);
    put(to, LOWBIT_SHUFFLE(Int16x16, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    put(to + kPanel,
        LOWBIT_SHUFFLE(Int16x16, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}

template <int kFrom, class Along>
LOWBIT_INLINE void transform_pairs(const PanelPixels& of, Along along, int64_t before, int16_t* held,
                                   int16_t* points, int64_t stride) {
    transform_tiles<kFrom>(of, along, [&](int64_t t, auto put_to) LOWBIT_INLINE_LAMBDA {
        if ((before + t) % 2 == 0) return put_to(held, kPanel);
        int16_t own[kPoints * kPanel];
        put_to(own, kPanel);
        int16_t* to = points + (before + t) / 2 * 2 * kPanel;
        for (int64_t i = 0; i < kPoints; i++) put_pair(held + i * kPanel, own + i * kPanel, to + i * stride);
    });
}

LOWBIT_INLINE int64_t transform_kernel(const int16_t* taps, int64_t row, int16_t* points, int64_t stride) {
    Int16x16 magnitudes = {};
    put_points<3>(
        KernelPoints(),
        [&](int i, int j, Int16x16& tap) LOWBIT_INLINE_LAMBDA {
            get(taps + (3 * i + j) * row, tap);
            add_magnitude(tap, magnitudes);
        },
        points, stride);
    int64_t sum = 0;
    for (int i = 0; i < kPanel; i++) sum += magnitudes[i];
    return sum;
}

namespace {

#define LOWBIT_TRANSFORMS(NAME, TARGET)                                                                     \
    namespace NAME {                                                                                        \
    template <bool kSigned>                                                                                 \
    TARGET int64_t magnitude(const uint8_t* bytes, int64_t count) {                                         \
        return sum_magnitudes<kSigned>(bytes, count);                                                       \
    }                                                                                                       \
    TARGET void source(const PanelPixels& pixels, int16_t* points, int64_t stride) {                        \
        transform_source(pixels, points, stride);                                                           \
    }                                                                                                       \
    TARGET void source_pairs(const PanelPixels& pixels, int64_t before, int16_t* held, int16_t* points,     \
                             int64_t stride) {                                                              \
        transform_pairs<kSide>(pixels, SourcePoints(), before, held, points, stride);                       \
    }                                                                                                       \
    TARGET void gradient_pairs(const PanelPixels& pixels, int64_t before, int16_t* held, int16_t* points,   \
                               int64_t stride) {                                                            \
        transform_pairs<kTile>(pixels, GradientPoints(), before, held, points, stride);                     \
    }                                                                                                       \
    TARGET int64_t kernel(const int16_t* taps, int64_t row, int16_t* points, int64_t stride) {              \
        return transform_kernel(taps, row, points, stride);                                                 \
    }                                                                                                       \
    TARGET void add_pixels(const int32_t* sums, int64_t stride, int64_t tiles, bool add, int32_t* others) { \
        if (add) return add_to_pixels(sums, stride, tiles, true, others);                                   \
        add_to_pixels(sums, stride, tiles, false, others);                                                  \
    }                                                                                                       \
    TARGET void values(const int32_t* sums, int64_t stride, int64_t tiles, const int32_t* others,           \
                       const ResultTiles& tiles_to, const ResultValues& to) {                               \
        if (to.bias) return inverse_to_values<true>(sums, stride, tiles, others, tiles_to, to);             \
        if (others) return inverse_to_values<false>(sums, stride, tiles, others, tiles_to, to);             \
        inverse_to_values<false>(sums, stride, tiles, nullptr, tiles_to, to);                               \
    }                                                                                                       \
    TARGET bool multiples(const int32_t* sums, int64_t stride, int64_t tiles, const int32_t* others,        \
                          const ResultTiles& tiles_to, const lowbit_multiples& to) {                        \
        if (to.high) return inverse_to_multiples<true>(sums, stride, tiles, others, tiles_to, to);          \
        return inverse_to_multiples<false>(sums, stride, tiles, others, tiles_to, to);                      \
    }                                                                                                       \
    TARGET void taps(const int32_t* sums, int64_t stride, bool add, int64_t* to) {                          \
        if (add) return inverse_to_taps(sums, stride, true, to);                                            \
        inverse_to_taps(sums, stride, false, to);                                                           \
    }                                                                                                       \
    const Transforms transforms = {{magnitude<false>, magnitude<true>},                                     \
                                   source,                                                                  \
                                   source_pairs,                                                            \
                                   gradient_pairs,                                                          \
                                   kernel,                                                                  \
                                   add_pixels,                                                              \
                                   values,                                                                  \
                                   multiples,                                                               \
                                   taps};                                                                   \
    }

#if LOWBIT_X86
LOWBIT_TRANSFORMS(avx2, __attribute__((target("avx2"))))
#endif
LOWBIT_TRANSFORMS(baseline, )

}  // namespace

const Transforms& transforms_for(InstructionSet isa) {
#if LOWBIT_X86
    if (isa != InstructionSet::baseline) return avx2::transforms;
#endif
    (void)isa;
    return baseline::transforms;
}

}  // namespace lowbit::winograd
