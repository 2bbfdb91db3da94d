// The transforms of F(2x2, 3x3) in integers, sixteen tiles at a time.
//
// Along one axis, with pixels d, kernel g, products m and result y:
//   input     d0 - d2,  d1 + d2,       d2 - d1,       d1 - d3
//   kernel    g0,       g0 + g1 + g2,  g0 - g1 + g2,  g2
//   result    y0 = m0 + (m1 + m2) / 2,  y1 = (m1 - m2) / 2 - m3
// The kernel's usual factors 1/2 are left out of its transform and applied to the result: m1 + m2 = 2 (d2 (g0
// + g2) + d1 g1) is even for any sum of products, so that the division is exact. grad_weight is the same with
// the roles changed:
//   gradient  dy0,      dy0 + dy1,     dy0 - dy1,     -dy1
//   kernel    dg0 = m0 + (m1 + m2) / 2,  dg1 = (m1 - m2) / 2,  dg2 = (m1 + m2) / 2 + m3
#include "winograd/transforms.h"

#include "common/scratch.h"

#include <algorithm>
#include <cstring>

namespace lowbit::winograd {

typedef int16_t Int16x16 __attribute__((vector_size(kPanel * sizeof(int16_t))));
typedef uint16_t UInt16x16 __attribute__((vector_size(kPanel * sizeof(uint16_t))));
typedef int32_t Int32x8 __attribute__((vector_size(kPanel / 2 * sizeof(int32_t))));

// Separates 32 bytes into the sixteen even and the sixteen odd ones, widened to int16.
template <bool kSigned>
LOWBIT_INLINE void deinterleave(const uint8_t* from, Int16x16& even, Int16x16& odd) {
    UInt16x16 pairs;
    memcpy(&pairs, from, sizeof pairs);
    if (kSigned) {
        even = reinterpret_cast<Int16x16>(pairs << 8) >> 8;
        odd = reinterpret_cast<Int16x16>(pairs) >> 8;
    } else {
        even = reinterpret_cast<Int16x16>(pairs & 255);
        odd = reinterpret_cast<Int16x16>(pairs >> 8);
    }
}

LOWBIT_INLINE void put(int16_t* to, const Int16x16& words) { memcpy(to, &words, sizeof words); }

LOWBIT_INLINE void source_points(const Int16x16& d0, const Int16x16& d1, const Int16x16& d2,
                                 const Int16x16& d3, Int16x16 (&points)[4]) {
    points[0] = d0 - d2;
    points[1] = d1 + d2;
    points[2] = d2 - d1;
    points[3] = d1 - d3;
}

LOWBIT_INLINE void gradient_points(const Int16x16& first, const Int16x16& second, Int16x16 (&points)[4]) {
    points[0] = first;
    points[1] = first + second;
    points[2] = first - second;
    points[3] = -second;
}

LOWBIT_INLINE void kernel_points(const Int16x16& g0, const Int16x16& g1, const Int16x16& g2,
                                 Int16x16 (&points)[4]) {
    const Int16x16 outer = g0 + g2;
    points[0] = g0;
    points[1] = outer + g1;
    points[2] = outer - g1;
    points[3] = g2;
}

// The points of a row of tiles, to points[i * stride + t] for tile t, whose pixels begin at column 2 t of
// four rows of bytes. Reads and writes sixteen tiles at a time.
template <bool kSigned>
LOWBIT_INLINE void transform_input(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points,
                                   int64_t stride) {
    for (int64_t t = 0; t < tiles; t += kPanel) {
        Int16x16 down[4][4];  // [column][point]
        LOWBIT_UNROLLED
        for (int pair = 0; pair < 2; pair++) {
            Int16x16 even[4], odd[4];
            LOWBIT_UNROLLED
            for (int i = 0; i < 4; i++) {
                deinterleave<kSigned>(rows + i * row_bytes + 2 * (t + pair), even[i], odd[i]);
            }
            source_points(even[0], even[1], even[2], even[3], down[2 * pair]);
            source_points(odd[0], odd[1], odd[2], odd[3], down[2 * pair + 1]);
        }
        LOWBIT_UNROLLED
        for (int i = 0; i < 4; i++) {
            Int16x16 along[4];
            source_points(down[0][i], down[1][i], down[2][i], down[3][i], along);
            LOWBIT_UNROLLED
            for (int j = 0; j < 4; j++) put(points + (4 * i + j) * stride + t, along[j]);
        }
    }
}

// The same for an output gradient, whose tiles are two rows of two pixels.
template <bool kSigned>
LOWBIT_INLINE void transform_gradient(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points,
                                      int64_t stride) {
    for (int64_t t = 0; t < tiles; t += kPanel) {
        Int16x16 even[2], odd[2], down[2][4];
        LOWBIT_UNROLLED
        for (int i = 0; i < 2; i++) deinterleave<kSigned>(rows + i * row_bytes + 2 * t, even[i], odd[i]);
        gradient_points(even[0], even[1], down[0]);
        gradient_points(odd[0], odd[1], down[1]);
        LOWBIT_UNROLLED
        for (int i = 0; i < 4; i++) {
            Int16x16 along[4];
            gradient_points(down[0][i], down[1][i], along);
            LOWBIT_UNROLLED
            for (int j = 0; j < 4; j++) put(points + (4 * i + j) * stride + t, along[j]);
        }
    }
}

// The points of kernels with the taps taps[k * channels + c]; channels are a multiple of sixteen.
LOWBIT_INLINE void transform_kernel(const int16_t* taps, int64_t channels, int16_t* points, int64_t stride) {
    for (int64_t c = 0; c < channels; c += kPanel) {
        Int16x16 g[kTaps], down[3][4];
        LOWBIT_UNROLLED
        for (int k = 0; k < kTaps; k++) memcpy(&g[k], taps + k * channels + c, sizeof g[k]);
        LOWBIT_UNROLLED
        for (int j = 0; j < 3; j++) kernel_points(g[j], g[3 + j], g[6 + j], down[j]);
        LOWBIT_UNROLLED
        for (int i = 0; i < 4; i++) {
            Int16x16 along[4];
            kernel_points(down[0][i], down[1][i], down[2][i], along);
            LOWBIT_UNROLLED
            for (int j = 0; j < 4; j++) put(points + (4 * i + j) * stride + c, along[j]);
        }
    }
}

// Interleaves the tiles of two channels to the words of a panel.
LOWBIT_INLINE void interleave(const int16_t* first, const int16_t* second, int16_t* to) {
    constexpr int64_t kHalf = kPanel / 2;
    typedef uint16_t Narrow __attribute__((vector_size(kHalf * sizeof(uint16_t))));
    typedef uint32_t Wide __attribute__((vector_size(kHalf * sizeof(uint32_t))));
    LOWBIT_UNROLLED
    for (int t = 0; t < kPanel; t += kHalf) {
        Narrow low, high;
        memcpy(&low, first + t, sizeof low);
        memcpy(&high, second + t, sizeof high);
        const Wide both = __builtin_convertvector(low, Wide) | __builtin_convertvector(high, Wide) << 16;
        memcpy(to + 2 * t, &both, sizeof both);
    }
}

LOWBIT_INLINE void result_pixels(const Int32x8 (&m)[4], Int32x8& first, Int32x8& second) {
    const Int32x8 half = (m[1] + m[2]) >> 1;
    first = m[0] + half;
    second = half - m[2] - m[3];
}

// A column of points, of eight tiles or channels.
LOWBIT_INLINE void column_points(const int32_t* from, int64_t stride, Int32x8 (&points)[4]) {
    LOWBIT_UNROLLED
    for (int i = 0; i < 4; i++) memcpy(&points[i], from + 4 * i * stride, sizeof points[i]);
}

// Sums to two rows of pixels of sixteen tiles, as [row][column][tile]. Point i of tile t is sums[i * stride +
// t].
LOWBIT_INLINE void inverse_pixels(const int32_t* sums, int64_t stride, int32_t (&pixels)[2][2][kPanel]) {
    for (int64_t t = 0; t < kPanel; t += kPanel / 2) {
        Int32x8 down[2][4];
        LOWBIT_UNROLLED
        for (int j = 0; j < 4; j++) {
            Int32x8 points[4];
            column_points(sums + j * stride + t, stride, points);
            result_pixels(points, down[0][j], down[1][j]);
        }
        LOWBIT_UNROLLED
        for (int i = 0; i < 2; i++) {
            Int32x8 even, odd;
            result_pixels(down[i], even, odd);
            memcpy(&pixels[i][0][t], &even, sizeof even);
            memcpy(&pixels[i][1][t], &odd, sizeof odd);
        }
    }
}

// The exact sums of 32 pixels of the upper row, then of the lower one.
LOWBIT_INLINE void inverse_to_sums(const int32_t* sums, int64_t stride, int64_t* to) {
    int32_t pixels[2][2][kPanel];
    inverse_pixels(sums, stride, pixels);
    for (int64_t i = 0; i < 4 * kPanel; i++) to[i] = pixels[i / (2 * kPanel)][i % 2][i / 2 % kPanel];
}

// The same as values: float(sum) * (scales[tile] * scale) + bias, each operation rounded; no bias if null.
LOWBIT_INLINE void inverse_to_values(const int32_t* sums, int64_t stride, const float* scales, float scale,
                                     const float* bias, float* to) {
    int32_t pixels[2][2][kPanel];
    float of_tile[kPanel];
    inverse_pixels(sums, stride, pixels);
    for (int64_t t = 0; t < kPanel; t++) of_tile[t] = scales[t] * scale;
    LOWBIT_UNROLLED
    for (int row = 0; row < 2; row++) {
        for (int64_t t = 0; t < kPanel; t++) {
            to[2 * (row * kPanel + t)] = static_cast<float>(pixels[row][0][t]) * of_tile[t];
            to[2 * (row * kPanel + t) + 1] = static_cast<float>(pixels[row][1][t]) * of_tile[t];
        }
    }
    for (int64_t i = 0; bias && i < 4 * kPanel; i++) to[i] += *bias;
}

LOWBIT_INLINE void kernel_taps(const Int32x8 (&m)[4], Int32x8 (&taps)[3]) {
    const Int32x8 half = (m[1] + m[2]) >> 1;
    taps[0] = m[0] + half;
    taps[1] = half - m[2];
    taps[2] = half + m[3];
}

// The nine taps of sixteen channels, to taps[k * 16 + c], from the points sums[i * stride + c].
LOWBIT_INLINE void inverse_to_taps(const int32_t* sums, int64_t stride, int32_t* taps) {
    for (int64_t c = 0; c < kPanel; c += kPanel / 2) {
        Int32x8 down[3][4];
        LOWBIT_UNROLLED
        for (int j = 0; j < 4; j++) {
            Int32x8 points[4], column[3];
            column_points(sums + j * stride + c, stride, points);
            kernel_taps(points, column);
            LOWBIT_UNROLLED
            for (int i = 0; i < 3; i++) down[i][j] = column[i];
        }
        LOWBIT_UNROLLED
        for (int i = 0; i < 3; i++) {
            Int32x8 along[3];
            kernel_taps(down[i], along);
            LOWBIT_UNROLLED
            for (int j = 0; j < 3; j++) memcpy(taps + (3 * i + j) * kPanel + c, &along[j], sizeof along[j]);
        }
    }
}

namespace {

#define LOWBIT_TRANSFORMS(NAME, TARGET)                                                                     \
    namespace NAME {                                                                                        \
    template <bool kSigned>                                                                                 \
    TARGET void source(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points,              \
                       int64_t stride) {                                                                    \
        transform_input<kSigned>(rows, row_bytes, tiles, points, stride);                                   \
    }                                                                                                       \
    template <bool kSigned>                                                                                 \
    TARGET void gradient(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points,            \
                         int64_t stride) {                                                                  \
        transform_gradient<kSigned>(rows, row_bytes, tiles, points, stride);                                \
    }                                                                                                       \
    TARGET void kernel(const int16_t* taps, int64_t channels, int16_t* points, int64_t stride) {            \
        transform_kernel(taps, channels, points, stride);                                                   \
    }                                                                                                       \
    TARGET void interleave_panels(const int16_t* first, const int16_t* second, int64_t panels, int16_t* to, \
                                  int64_t panel) {                                                          \
        for (int64_t i = 0; i < panels; i++)                                                                \
            interleave(first + i * kPanel, second + i * kPanel, to + i * panel);                            \
    }                                                                                                       \
    TARGET void sums(const int32_t* from, int64_t stride, int64_t* to) {                                    \
        inverse_to_sums(from, stride, to);                                                                  \
    }                                                                                                       \
    TARGET void values(const int32_t* from, int64_t stride, const float* scales, float scale,               \
                       const float* bias, float* to) {                                                      \
        inverse_to_values(from, stride, scales, scale, bias, to);                                           \
    }                                                                                                       \
    TARGET void taps(const int32_t* sums, int64_t stride, int32_t* to) {                                    \
        inverse_to_taps(sums, stride, to);                                                                  \
    }                                                                                                       \
    const Transforms transforms = {{source<false>, source<true>},                                           \
                                   {gradient<false>, gradient<true>},                                       \
                                   kernel,                                                                  \
                                   interleave_panels,                                                       \
                                   sums,                                                                    \
                                   values,                                                                  \
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

namespace {

constexpr int64_t kRead =
    64;  // bytes beyond a row that can be read, since sixteen tiles are transformed at a time

// Copies rows [first, first + count) of a padded channel; pixels that no tile sees may be omitted.
void pad(const ChannelView& channel, const uint8_t* image, int64_t first, int64_t count, uint8_t* to,
         int64_t row_bytes) {
    const size_t width = static_cast<size_t>(std::min(channel.width, row_bytes - channel.pad_left));
    memset(to, 0, static_cast<size_t>(count * row_bytes));
    for (int64_t row = std::max(first, channel.pad_top); row < first + count; row++) {
        const int64_t from = row - channel.pad_top;
        if (from >= channel.height) return;
        memcpy(to + (row - first) * row_bytes + channel.pad_left, image + from * channel.width, width);
    }
}

}  // namespace

void transform_rows(const Tiling& tiling, const ChannelView& channel, RowTransform transform, int64_t first,
                    int64_t last, int16_t* points, int64_t stride) {
    thread_local Scratch scratch;
    const int64_t row_bytes = 2 * tiling.columns + channel.reach + kRead;
    uint8_t* bytes =
        scratch.get<uint8_t>((2 * std::min(tiling.tile_rows, last - first) + channel.reach) * row_bytes);
    for (int64_t row = first; row < last;) {
        const int64_t n = row / tiling.tile_rows, at = row % tiling.tile_rows;
        const int64_t count = std::min(last - row, tiling.tile_rows - at);
        pad(channel, channel.first + n * channel.image, 2 * at, 2 * count + channel.reach - 2, bytes,
            row_bytes);
        for (int64_t i = 0; i < count; i++, points += tiling.columns) {
            transform(bytes + 2 * i * row_bytes, row_bytes, tiling.columns, points, stride);
        }
        row += count;
    }
}

}  // namespace lowbit::winograd
