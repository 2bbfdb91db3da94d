// The transforms of F(4x4, 3x3) in integers, sixteen tiles at a time.
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

#include "common/scratch.h"

#include <algorithm>
#include <cstring>

namespace lowbit::winograd {

typedef int16_t Int16x16 __attribute__((vector_size(kPanel * sizeof(int16_t))));
typedef uint16_t UInt16x16 __attribute__((vector_size(kPanel * sizeof(uint16_t))));
typedef int32_t Int32x8 __attribute__((vector_size(kPanel / 2 * sizeof(int32_t))));
typedef uint32_t UInt32x8 __attribute__((vector_size(kPanel / 2 * sizeof(uint32_t))));
typedef uint32_t UInt32x16 __attribute__((vector_size(kPanel * sizeof(uint32_t))));
typedef int32_t Int32x16 __attribute__((vector_size(kPanel * sizeof(int32_t))));

#if defined(__clang__)
#define LOWBIT_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LOWBIT_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Int32x8{__VA_ARGS__})
#endif

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

// Columns 0 to 3 of sixteen tiles: the four bytes of each word.
template <bool kSigned>
LOWBIT_INLINE void separate_bytes(const uint8_t* bytes, int64_t count, int16_t* to, int64_t plane) {
    for (int64_t t = 0; t < count; t += kPanel) {
        UInt32x16 words;
        memcpy(&words, bytes + kTile * t, sizeof words);
        LOWBIT_UNROLLED
        for (int j = 0; j < kTile; j++) {
            Int32x16 wide;
            if (kSigned) {
                wide = reinterpret_cast<Int32x16>(words << (24 - 8 * j)) >> 24;
            } else {
                wide = reinterpret_cast<Int32x16>(words >> (8 * j) & 255);
            }
            put(to + j * plane + t, __builtin_convertvector(wide, Int16x16));
        }
    }
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

// The second half of a transform: rows of points from columns of them, down[column][point].
template <int kColumns, class Along>
LOWBIT_INLINE void put_points(const Int16x16 (&down)[kColumns][kSide], Along along, int16_t* points,
                              int64_t stride) {
    LOWBIT_UNROLLED
    for (int i = 0; i < kSide; i++) {
        Int16x16 row[kColumns], out[kSide];
        LOWBIT_UNROLLED
        for (int j = 0; j < kColumns; j++) row[j] = down[j][i];
        along(row, out);
        LOWBIT_UNROLLED
        for (int j = 0; j < kSide; j++) put(points + (kSide * i + j) * stride, out[j]);
    }
}

LOWBIT_INLINE void transform_source(const Planes& planes, int64_t tiles, int16_t* points, int64_t stride) {
    for (int64_t t = 0; t < tiles; t += kPanel) {
        Int16x16 down[kSide][kSide];
        LOWBIT_UNROLLED
        for (int j = 0; j < kSide; j++) {
            Int16x16 column[kSide];
            // Columns 4 and 5 of a tile are columns 0 and 1 of the next one.
            const int16_t* from = planes.first + j % kTile * planes.plane + t + j / kTile;
            LOWBIT_UNROLLED
            for (int i = 0; i < kSide; i++) get(from + i * planes.row, column[i]);
            SourcePoints()(column, down[j]);
        }
        put_points(down, SourcePoints(), points + t, stride);
    }
}

LOWBIT_INLINE void transform_gradient(const Planes& planes, int64_t tiles, int16_t* points, int64_t stride) {
    for (int64_t t = 0; t < tiles; t += kPanel) {
        Int16x16 down[kTile][kSide];
        LOWBIT_UNROLLED
        for (int j = 0; j < kTile; j++) {
            Int16x16 column[kTile];
            LOWBIT_UNROLLED
            for (int i = 0; i < kTile; i++) {
                get(planes.first + i * planes.row + j * planes.plane + t, column[i]);
            }
            GradientPoints()(column, down[j]);
        }
        put_points(down, GradientPoints(), points + t, stride);
    }
}

// The points of kernels with the taps taps[k * channels + c]; channels are a multiple of sixteen.
LOWBIT_INLINE int64_t transform_kernel(const int16_t* taps, int64_t channels, int16_t* points,
                                       int64_t stride) {
    Int32x16 magnitudes = {};
    for (int64_t c = 0; c < channels; c += kPanel) {
        Int16x16 down[3][kSide], magnitude = {};
        LOWBIT_UNROLLED
        for (int j = 0; j < 3; j++) {
            Int16x16 column[3];
            LOWBIT_UNROLLED
            for (int i = 0; i < 3; i++) {
                get(taps + (3 * i + j) * channels + c, column[i]);
                add_magnitude(column[i], magnitude);
            }
            KernelPoints()(column, down[j]);
        }
        magnitudes += __builtin_convertvector(magnitude, Int32x16);
        put_points(down, KernelPoints(), points + c, stride);
    }
    int64_t sum = 0;
    for (int i = 0; i < kPanel; i++) sum += magnitudes[i];
    return sum;
}

// Interleaves the tiles of two channels to the words of a panel.
LOWBIT_INLINE void interleave(const int16_t* first, const int16_t* second, int16_t* to) {
    constexpr int64_t kHalf = kPanel / 2;
    typedef uint16_t Narrow __attribute__((vector_size(kHalf * sizeof(uint16_t))));
    LOWBIT_UNROLLED
    for (int t = 0; t < kPanel; t += kHalf) {
        Narrow low, high;
        memcpy(&low, first + t, sizeof low);
        memcpy(&high, second + t, sizeof high);
        const UInt32x8 both = __builtin_convertvector(low, UInt32x8) | __builtin_convertvector(high, UInt32x8)
                                                                           << 16;
        memcpy(to + 2 * t, &both, sizeof both);
    }
}

// 24 y0, 12 y1, 6 y2 and 6 y3 modulo 2^32, of eight tiles.
struct ResultPixels {
    LOWBIT_INLINE void operator()(const UInt32x8 (&m)[kSide], UInt32x8 (&y)[kTile]) const {
        const UInt32x8 near = m[1] + m[2], slope = m[1] - m[2], far = m[3] + m[4], steep = m[3] - m[4];
        y[0] = ((m[0] - near) << 2) + (m[0] << 1) + far;
        y[1] = steep - (slope << 1);
        y[2] = far - near;
        y[3] = (steep << 1) - slope + (m[5] << 2) + (m[5] << 1);
    }
};

// 24 dg0, 12 dg1 and 6 dg2 modulo 2^32, of eight channels.
struct KernelTaps {
    LOWBIT_INLINE void operator()(const UInt32x8 (&m)[kSide], UInt32x8 (&taps)[3]) const {
        const UInt32x8 near = m[1] + m[2], slope = m[1] - m[2], far = m[3] + m[4], steep = m[3] - m[4];
        taps[0] = ((m[0] - near) << 2) + (m[0] << 1) + far;
        taps[1] = steep - (slope << 1);
        taps[2] = far - near + (m[5] << 2) + (m[5] << 1);
    }
};

// Removes the factors of a result: 9, and 2 to the power of kTwos of its row and of its column.
constexpr int kTwos[kTile] = {3, 2, 1, 1};
constexpr uint32_t kInverseOf9 = 954437177;
static_assert(9 * kInverseOf9 == 1, "modulo 2^32");

LOWBIT_INLINE void remove_factors(const UInt32x8& scaled, int row, int column, Int32x8& result) {
    result = reinterpret_cast<Int32x8>(scaled * kInverseOf9) >> (kTwos[row] + kTwos[column]);
}

// Both halves of an inverse transform, from the points sums[i * stride] of eight tiles or channels.
template <int kResults, class Inverse>
LOWBIT_INLINE void inverse_transform(const int32_t* sums, int64_t stride, Inverse inverse,
                                     Int32x8 (&results)[kResults][kResults]) {
    UInt32x8 down[kResults][kSide];
    LOWBIT_UNROLLED
    for (int j = 0; j < kSide; j++) {
        UInt32x8 points[kSide], column[kResults];
        LOWBIT_UNROLLED
        for (int i = 0; i < kSide; i++) {
            memcpy(&points[i], sums + (kSide * i + j) * stride, sizeof points[i]);
        }
        inverse(points, column);
        LOWBIT_UNROLLED
        for (int i = 0; i < kResults; i++) down[i][j] = column[i];
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < kResults; i++) {
        UInt32x8 row[kResults];
        inverse(down[i], row);
        LOWBIT_UNROLLED
        for (int j = 0; j < kResults; j++) remove_factors(row[j], i, j, results[i][j]);
    }
}

template <class Vector, class Element>
LOWBIT_INLINE void store(Element* to, const Vector& words, bool add) {
    Vector before;
    memcpy(&before, to, sizeof before);
    const Vector sum = add ? before + words : words;
    memcpy(to, &sum, sizeof sum);
}

// Stores four columns of eight tiles as the 32 pixels of a row.
LOWBIT_INLINE void store_row(const Int32x8 (&columns)[kTile], bool add, int32_t* to) {
    Int32x8 halves[2][2], tiles[4];  // [columns 0, 1 or 2, 3][tiles 0, 1, 4, 5 or 2, 3, 6, 7]
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) {
        halves[i][0] = LOWBIT_SHUFFLE(columns[2 * i], columns[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        halves[i][1] = LOWBIT_SHUFFLE(columns[2 * i], columns[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) {  // tiles[t] has tiles t and t + 4
        tiles[2 * i] = LOWBIT_SHUFFLE(halves[0][i], halves[1][i], 0, 1, 8, 9, 4, 5, 12, 13);
        tiles[2 * i + 1] = LOWBIT_SHUFFLE(halves[0][i], halves[1][i], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) {
        store(to + 8 * i, LOWBIT_SHUFFLE(tiles[2 * i], tiles[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11), add);
        store(to + 8 * i + 16, LOWBIT_SHUFFLE(tiles[2 * i], tiles[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15),
              add);
    }
}

LOWBIT_INLINE void inverse_to_pixels(const int32_t* sums, int64_t stride, bool add, int32_t* to) {
    for (int64_t t = 0; t < kPanel; t += kPanel / 2) {
        Int32x8 pixels[kTile][kTile];
        inverse_transform(sums + t, stride, ResultPixels(), pixels);
        LOWBIT_UNROLLED
        for (int i = 0; i < kTile; i++) store_row(pixels[i], add, to + i * kPixels + kTile * t);
    }
}

LOWBIT_INLINE void inverse_to_taps(const int32_t* sums, int64_t stride, bool add, int64_t* to) {
    typedef int64_t Int64x8 __attribute__((vector_size(kPanel / 2 * sizeof(int64_t))));
    for (int64_t c = 0; c < kPanel; c += kPanel / 2) {
        Int32x8 taps[3][3];
        inverse_transform(sums + c, stride, KernelTaps(), taps);
        LOWBIT_UNROLLED
        for (int k = 0; k < kTaps; k++) {
            store(to + k * kPanel + c, __builtin_convertvector(taps[k / 3][k % 3], Int64x8), add);
        }
    }
}

LOWBIT_INLINE void scale_sums(const int32_t* sums, int64_t count, float scale, const float* bias, float* to) {
    if (!bias) {
        for (int64_t i = 0; i < count; i++) to[i] = static_cast<float>(sums[i]) * scale;
        return;
    }
    for (int64_t i = 0; i < count; i++) to[i] = static_cast<float>(sums[i]) * scale + *bias;
}

namespace {

#define LOWBIT_TRANSFORMS(NAME, TARGET)                                                                     \
    namespace NAME {                                                                                        \
    template <bool kSigned>                                                                                 \
    TARGET int64_t magnitude(const uint8_t* bytes, int64_t count) {                                         \
        return sum_magnitudes<kSigned>(bytes, count);                                                       \
    }                                                                                                       \
    template <bool kSigned>                                                                                 \
    TARGET void separate(const uint8_t* bytes, int64_t count, int16_t* to, int64_t plane) {                 \
        separate_bytes<kSigned>(bytes, count, to, plane);                                                   \
    }                                                                                                       \
    TARGET void source(const Planes& planes, int64_t tiles, int16_t* points, int64_t stride) {              \
        transform_source(planes, tiles, points, stride);                                                    \
    }                                                                                                       \
    TARGET void gradient(const Planes& planes, int64_t tiles, int16_t* points, int64_t stride) {            \
        transform_gradient(planes, tiles, points, stride);                                                  \
    }                                                                                                       \
    TARGET int64_t kernel(const int16_t* taps, int64_t channels, int16_t* points, int64_t stride) {         \
        return transform_kernel(taps, channels, points, stride);                                            \
    }                                                                                                       \
    TARGET void interleave_panels(const int16_t* first, const int16_t* second, int64_t panels, int16_t* to, \
                                  int64_t panel) {                                                          \
        for (int64_t i = 0; i < panels; i++)                                                                \
            interleave(first + i * kPanel, second + i * kPanel, to + i * panel);                            \
    }                                                                                                       \
    TARGET void pixels(const int32_t* sums, int64_t stride, bool add, int32_t* to) {                        \
        if (add) return inverse_to_pixels(sums, stride, true, to);                                          \
        inverse_to_pixels(sums, stride, false, to);                                                         \
    }                                                                                                       \
    TARGET void taps(const int32_t* sums, int64_t stride, bool add, int64_t* to) {                          \
        if (add) return inverse_to_taps(sums, stride, true, to);                                            \
        inverse_to_taps(sums, stride, false, to);                                                           \
    }                                                                                                       \
    TARGET void values(const int32_t* sums, int64_t count, float scale, const float* bias, float* to) {     \
        scale_sums(sums, count, scale, bias, to);                                                           \
    }                                                                                                       \
    const Transforms transforms = {{magnitude<false>, magnitude<true>},                                     \
                                   {separate<false>, separate<true>},                                       \
                                   source,                                                                  \
                                   gradient,                                                                \
                                   kernel,                                                                  \
                                   interleave_panels,                                                       \
                                   pixels,                                                                  \
                                   taps,                                                                    \
                                   values};                                                                 \
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

void transform_rows(const Tiling& tiling, const ChannelView& channel, const Transforms& transforms,
                    RowTransform transform, int64_t first, int64_t last, int16_t* points, int64_t stride) {
    thread_local Scratch bytes_scratch, planes_scratch;
    // The last tile sees the first columns of the next one. Sixteen tiles are transformed at a time: what the
    // further ones read, of the next plane or behind all of them, is not used.
    const int64_t plane = round_up(tiling.columns + 1, kPanel), row_bytes = kTile * plane;
    const int64_t most = kTile * std::min(tiling.tile_rows, last - first) + channel.reach - kTile;
    uint8_t* bytes = bytes_scratch.get<uint8_t>(row_bytes);
    int16_t* planes = planes_scratch.get<int16_t>(most * row_bytes + kPanel);
    const int64_t width = std::min(channel.width, row_bytes - channel.pad_left);
    memset(bytes, 0, static_cast<size_t>(row_bytes));
    for (int64_t row = first; row < last;) {
        const int64_t n = row / tiling.tile_rows, at = row % tiling.tile_rows;
        const int64_t count = std::min(last - row, tiling.tile_rows - at);
        const uint8_t* image = channel.first + n * channel.image;
        for (int64_t i = 0; i < kTile * count + channel.reach - kTile; i++) {
            const int64_t from = kTile * at + i - channel.pad_top;
            int16_t* to = planes + i * row_bytes;
            if (from < 0 || from >= channel.height) {
                memset(to, 0, static_cast<size_t>(row_bytes) * sizeof(int16_t));
                continue;
            }
            memcpy(bytes + channel.pad_left, image + from * channel.width, static_cast<size_t>(width));
            transforms.separate[channel.is_signed](bytes, plane, to, plane);
        }
        for (int64_t i = 0; i < count; i++, points += tiling.columns) {
            transform({planes + kTile * i * row_bytes, row_bytes, plane}, tiling.columns, points, stride);
        }
        row += count;
    }
}

}  // namespace lowbit::winograd
