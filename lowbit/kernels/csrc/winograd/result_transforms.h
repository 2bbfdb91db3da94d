// From sums of points to results: pixels, values, multiples, or taps; eight channels at a time.
//
// The formulas are in transforms.cpp. Each function is inlined for every instruction set.
#pragma once
#include "winograd/transforms.h"

#include <algorithm>
#include <cstring>

namespace lowbit::winograd {

typedef int16_t Int16x16 __attribute__((vector_size(kPanel * sizeof(int16_t))));
typedef uint16_t UInt16x16 __attribute__((vector_size(kPanel * sizeof(uint16_t))));
typedef int32_t Int32x8 __attribute__((vector_size(kPanel / 2 * sizeof(int32_t))));
typedef uint32_t UInt32x8 __attribute__((vector_size(kPanel / 2 * sizeof(uint32_t))));
typedef float Floatx8 __attribute__((vector_size(kPanel / 2 * sizeof(float))));

constexpr int64_t kHalf = kPanel / 2;  // lanes of a vector of 32-bit elements

#if defined(__clang__)
#define LOWBIT_SHUFFLE(Places, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LOWBIT_SHUFFLE(Places, a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// 24 y0, 12 y1, 6 y2 and 6 y3 modulo 2^32, of eight channels.
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

// Both halves of an inverse transform, from the points sums[i * stride] of eight channels. The columns are
// not unrolled: compilers would keep the addresses of all points, which are more than there are registers.
template <int kResults, class Inverse>
LOWBIT_INLINE void inverse_transform(const int32_t* sums, int64_t stride, Inverse inverse,
                                     Int32x8 (&results)[kResults][kResults]) {
    UInt32x8 down[kResults][kSide];
    LOWBIT_NOT_UNROLLED
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

LOWBIT_INLINE void add_to_pixels(const int32_t* sums, int64_t stride, int64_t tiles, bool add,
                                 int32_t* others) {
    for (int64_t t = 0; t < tiles; t++) {
        for (int64_t c = 0; c < kPanel; c += kHalf) {
            Int32x8 pixels[kTile][kTile];
            inverse_transform(sums + t * kPanel + c, stride, ResultPixels(), pixels);
            LOWBIT_UNROLLED
            for (int i = 0; i < kPixels; i++) {
                store(others + (t * kPixels + i) * kPanel + c, pixels[i / kTile][i % kTile], add);
            }
        }
    }
}

// Four pixels of eight channels, to rows of four pixels of each channel, `channel` elements apart.
template <class Vector, class Element>
LOWBIT_INLINE void turn(const Vector (&pixels)[kTile], Element* rows, int64_t channel) {
    Vector halves[2][2];  // [pixels 0, 1 or 2, 3][channels 0, 1, 4, 5 or 2, 3, 6, 7]
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) {
        const Vector &first = pixels[2 * i], &second = pixels[2 * i + 1];
        halves[i][0] = LOWBIT_SHUFFLE(Int32x8, first, second, 0, 8, 1, 9, 4, 12, 5, 13);
        halves[i][1] = LOWBIT_SHUFFLE(Int32x8, first, second, 2, 10, 3, 11, 6, 14, 7, 15);
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) {
        const Vector both[2] = {
            LOWBIT_SHUFFLE(Int32x8, halves[0][i], halves[1][i], 0, 1, 8, 9, 4, 5, 12, 13),
            LOWBIT_SHUFFLE(Int32x8, halves[0][i], halves[1][i], 2, 3, 10, 11, 6, 7, 14, 15)};
        LOWBIT_UNROLLED
        for (int k = 0; k < 2; k++) {  // channels 2 i + k and 2 i + k + 4
            constexpr size_t kBytes = kTile * sizeof(Element);
            const char* bytes = reinterpret_cast<const char*>(&both[k]);
            memcpy(rows + (2 * i + k) * channel, bytes, kBytes);
            memcpy(rows + (2 * i + k + kTile) * channel, bytes + kBytes, kBytes);
        }
    }
}

// Rows of pixels of a channel are written together: the planes of channels are often a power of two apart,
// and so are more lines than the cache has ways for.
constexpr int64_t kTilesTogether = 16, kRowPixels = kTilesTogether * kTile;

// Up to kTilesTogether tiles of eight channels, to rows [channel][kTile][kTile * tiles].
template <class Vector, class Element, class Convert>
LOWBIT_INLINE void inverse_to_rows(const int32_t* sums, int64_t stride, int64_t tiles, const int32_t* others,
                                   Convert convert, Element* rows) {
    for (int64_t t = 0; t < tiles; t++) {
        Int32x8 pixels[kTile][kTile];
        inverse_transform(sums + t * kPanel, stride, ResultPixels(), pixels);
        LOWBIT_UNROLLED
        for (int i = 0; i < kTile; i++) {
            Vector converted[kTile];
            LOWBIT_UNROLLED
            for (int j = 0; j < kTile; j++) {
                if (others) {
                    Int32x8 other;
                    memcpy(&other, others + (t * kPixels + kTile * i + j) * kPanel, sizeof other);
                    pixels[i][j] += other;
                }
                convert(pixels[i][j], converted[j]);
            }
            turn(converted, rows + kTile * (i * tiles + t), kTile * kRowPixels);
        }
    }
}

// store(row of elements, count, where it goes); convert(first of eight channels) is inverse_to_rows's.
template <class Vector, class Element, class ConvertOf, class Store>
LOWBIT_INLINE void inverse_to_planes(const int32_t* sums, int64_t stride, int64_t tiles,
                                     const int32_t* others, const ResultTiles& to, ConvertOf convert_of,
                                     Store store) {
    Element rows[kHalf * kTile * kRowPixels];
    for (int64_t c = 0; c < to.channels; c += kHalf) {
        for (int64_t t = 0; t < tiles; t += kTilesTogether) {
            const int64_t count = std::min(kTilesTogether, tiles - t), width = kTile * count;
            inverse_to_rows<Vector>(sums + t * kPanel + c, stride, count,
                                    others ? others + t * kPixels * kPanel + c : nullptr, convert_of(c),
                                    rows);
            const int64_t columns = std::min(width, to.columns - kTile * t);
            for (int64_t k = 0; k < std::min(kHalf, to.channels - c); k++) {
                const Element* from = rows + k * kTile * kRowPixels;
                const int64_t first = (c + k) * to.plane + kTile * t;
                if (width == to.width) {
                    store(from, to.rows * width, first);
                } else {
                    for (int64_t i = 0; i < to.rows; i++) {
                        store(from + i * width, columns, first + i * to.width);
                    }
                }
            }
        }
    }
}

template <bool kBias>
LOWBIT_INLINE void inverse_to_values(const int32_t* sums, int64_t stride, int64_t tiles,
                                     const int32_t* others, const ResultTiles& tiles_to,
                                     const ResultValues& to) {
    inverse_to_planes<Floatx8, float>(
        sums, stride, tiles, others, tiles_to,
        [&](int64_t c) LOWBIT_INLINE_LAMBDA {
            Floatx8 scale, bias = {};
            memcpy(&scale, to.scale + c, sizeof scale);
            if (kBias) memcpy(&bias, to.bias + c, sizeof bias);
            return [scale, bias](const Int32x8& sum, Floatx8& value) LOWBIT_INLINE_LAMBDA {
                value = __builtin_convertvector(sum, Floatx8) * scale;
                if (kBias) value += bias;
            };
        },
        [&](const float* from, int64_t count, int64_t at)
            LOWBIT_INLINE_LAMBDA { std::copy_n(from, count, to.first + at); });
}

template <bool kHigh>
LOWBIT_INLINE bool inverse_to_multiples(const int32_t* sums, int64_t stride, int64_t tiles,
                                        const int32_t* others, const ResultTiles& tiles_to,
                                        const lowbit_multiples& to) {
    Int32x8 used = {};  // the bits of all magnitudes, -1 counting as 0
    inverse_to_planes<Int32x8, int32_t>(
        sums, stride, tiles, others, tiles_to,
        [&](int64_t) LOWBIT_INLINE_LAMBDA {
            return [&](const Int32x8& sum, Int32x8& same) LOWBIT_INLINE_LAMBDA {
                used |= sum ^ (sum >> 31);
                same = sum;
            };
        },
        [&](const int32_t* __restrict from, int64_t count, int64_t at) LOWBIT_INLINE_LAMBDA {
            uint16_t* __restrict low = to.low + at;
            for (int64_t i = 0; i < count; i++) low[i] = static_cast<uint16_t>(from[i]);
            if (!kHigh) return;
            int8_t* __restrict high = to.high + at;
            for (int64_t i = 0; i < count; i++) high[i] = static_cast<int8_t>(from[i] >> 16);
        });
    int32_t bits = 0;
    for (int i = 0; i < kHalf; i++) bits |= used[i];
    return bits < (1 << (kHigh ? 23 : 15));
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

}  // namespace lowbit::winograd
