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
LOWBIT_INLINE void turn(const Floatx8 (&pixels)[kTile], float* rows, int64_t channel) {
    Floatx8 halves[2][2];  // [pixels 0, 1 or 2, 3][channels 0, 1, 4, 5 or 2, 3, 6, 7]
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) {
        const Floatx8 &first = pixels[2 * i], &second = pixels[2 * i + 1];
        halves[i][0] = LOWBIT_SHUFFLE(Int32x8, first, second, 0, 8, 1, 9, 4, 12, 5, 13);
        halves[i][1] = LOWBIT_SHUFFLE(Int32x8, first, second, 2, 10, 3, 11, 6, 14, 7, 15);
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) {
        const Floatx8 both[2] = {
            LOWBIT_SHUFFLE(Int32x8, halves[0][i], halves[1][i], 0, 1, 8, 9, 4, 5, 12, 13),
            LOWBIT_SHUFFLE(Int32x8, halves[0][i], halves[1][i], 2, 3, 10, 11, 6, 7, 14, 15)};
        LOWBIT_UNROLLED
        for (int k = 0; k < 2; k++) {  // channels 2 i + k and 2 i + k + 4
            constexpr size_t kBytes = kTile * sizeof(float);
            const char* bytes = reinterpret_cast<const char*>(&both[k]);
            memcpy(rows + (2 * i + k) * channel, bytes, kBytes);
            memcpy(rows + (2 * i + k + kTile) * channel, bytes + kBytes, kBytes);
        }
    }
}

// The same for the lowest 16 bits of the pixels.
LOWBIT_INLINE void turn_low(const Int32x8 (&pixels)[kTile], uint16_t* rows, int64_t channel) {
    Int32x8 pairs[2];  // pixels 0, 1 and 2, 3
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) pairs[i] = (pixels[2 * i] & 0xffff) | (pixels[2 * i + 1] << 16);
    const Int32x8 both[2] = {LOWBIT_SHUFFLE(Int32x8, pairs[0], pairs[1], 0, 8, 1, 9, 4, 12, 5, 13),
                             LOWBIT_SHUFFLE(Int32x8, pairs[0], pairs[1], 2, 10, 3, 11, 6, 14, 7, 15)};
    LOWBIT_UNROLLED
    for (int i = 0; i < 2; i++) {
        LOWBIT_UNROLLED
        for (int k = 0; k < kTile; k++) {  // channels 2 i, 2 i + 1, 2 i + 4 and 2 i + 5
            constexpr size_t kBytes = kTile * sizeof(uint16_t);
            const char* bytes = reinterpret_cast<const char*>(&both[i]) + k * kBytes;
            memcpy(rows + (2 * i + k % 2 + k / 2 * kTile) * channel, bytes, kBytes);
        }
    }
}

// The same for the 8 bits above.
LOWBIT_INLINE void turn_high(const Int32x8 (&pixels)[kTile], int8_t* rows, int64_t channel) {
    constexpr int32_t kByte = 0xff;
    const Int32x8 four = ((pixels[0] >> 16) & kByte) | ((pixels[1] >> 8) & (kByte << 8)) |
                         (pixels[2] & (kByte << 16)) | ((pixels[3] >> 16) << 24);
    LOWBIT_UNROLLED
    for (int k = 0; k < kHalf; k++) {
        const int32_t bytes = four[k];
        memcpy(rows + k * channel, &bytes, sizeof bytes);
    }
}

// Rows of pixels of a channel are written together: the planes of channels are often a power of two apart,
// and so are more lines than the cache has ways for.
constexpr int64_t kTilesTogether = 16, kRowPixels = kTilesTogether * kTile;
constexpr int64_t kChannelPixels = kTile * kRowPixels;  // of a channel of eight, [kTile][kTile * tiles]

// put(four pixels of eight channels, where their rows begin) for up to kTilesTogether tiles.
template <class Put>
LOWBIT_INLINE void inverse_to_rows(const int32_t* sums, int64_t stride, int64_t tiles, const int32_t* others,
                                   Put put) {
    for (int64_t t = 0; t < tiles; t++) {
        Int32x8 pixels[kTile][kTile];
        inverse_transform(sums + t * kPanel, stride, ResultPixels(), pixels);
        LOWBIT_UNROLLED
        for (int i = 0; i < kTile; i++) {
            LOWBIT_UNROLLED
            for (int j = 0; j < kTile && others; j++) {
                Int32x8 other;
                memcpy(&other, others + (t * kPixels + kTile * i + j) * kPanel, sizeof other);
                pixels[i][j] += other;
            }
            put(pixels[i], kTile * (i * tiles + t));
        }
    }
}

// Asks for memory that is written soon: a store to a line that is not in the cache waits for it.
template <class Element>
LOWBIT_INLINE void prefetch(Element* first, int64_t count) {
    constexpr int64_t kLine = 64 / sizeof(Element);
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(first + i, 1);
}

// put(first of eight channels, their pixels, where their rows begin) for all tiles; then
// store(from, to, count) copies from these rows. prefetch(to, count) comes before that.
template <class Put, class Prefetch, class Store>
LOWBIT_INLINE void inverse_to_planes(const int32_t* sums, int64_t stride, int64_t tiles,
                                     const int32_t* others, const ResultTiles& to, Put put, Prefetch prefetch,
                                     Store store) {
    for (int64_t c = 0; c < to.channels; c += kHalf) {
        for (int64_t t = 0; t < tiles; t += kTilesTogether) {
            const int64_t count = std::min(kTilesTogether, tiles - t), width = kTile * count;
            const int64_t columns = std::min(width, to.columns - kTile * t);
            const bool whole = width == to.width;  // rows are next to each other
            const int64_t rows = whole ? 1 : to.rows, length = whole ? to.rows * width : columns;
            const auto for_each_run = [&](auto of) LOWBIT_INLINE_LAMBDA {
                for (int64_t k = 0; k < std::min(kHalf, to.channels - c); k++) {
                    for (int64_t i = 0; i < rows; i++) {
                        of(k * kChannelPixels + i * width, (c + k) * to.plane + kTile * t + i * to.width);
                    }
                }
            };
            for_each_run([&](int64_t, int64_t at) LOWBIT_INLINE_LAMBDA { prefetch(at, length); });
            inverse_to_rows(
                sums + t * kPanel + c, stride, count, others ? others + t * kPixels * kPanel + c : nullptr,
                [&](const Int32x8(&pixels)[kTile], int64_t at) LOWBIT_INLINE_LAMBDA { put(c, pixels, at); });
            for_each_run([&](int64_t from, int64_t at) LOWBIT_INLINE_LAMBDA { store(from, at, length); });
        }
    }
}

template <bool kBias>
LOWBIT_INLINE void inverse_to_values(const int32_t* sums, int64_t stride, int64_t tiles,
                                     const int32_t* others, const ResultTiles& tiles_to,
                                     const ResultValues& to) {
    float rows[kHalf * kChannelPixels];
    inverse_to_planes(
        sums, stride, tiles, others, tiles_to,
        [&](int64_t c, const Int32x8(&pixels)[kTile], int64_t at) LOWBIT_INLINE_LAMBDA {
            Floatx8 scale, bias = {}, values[kTile];
            memcpy(&scale, to.scale + c, sizeof scale);
            if (kBias) memcpy(&bias, to.bias + c, sizeof bias);
            LOWBIT_UNROLLED
            for (int j = 0; j < kTile; j++) {
                values[j] = __builtin_convertvector(pixels[j], Floatx8) * scale;
                if (kBias) values[j] += bias;
            }
            turn(values, rows + at, kChannelPixels);
        },
        [&](int64_t at, int64_t count) LOWBIT_INLINE_LAMBDA { prefetch(to.first + at, count); },
        [&](int64_t from, int64_t at, int64_t count)
            LOWBIT_INLINE_LAMBDA { std::copy_n(rows + from, count, to.first + at); });
}

template <bool kHigh>
LOWBIT_INLINE bool inverse_to_multiples(const int32_t* sums, int64_t stride, int64_t tiles,
                                        const int32_t* others, const ResultTiles& tiles_to,
                                        const lowbit_multiples& to) {
    uint16_t low[kHalf * kChannelPixels];
    int8_t high[kHigh ? kHalf * kChannelPixels : 1];
    Int32x8 used = {};  // the bits of all magnitudes, -1 counting as 0
    inverse_to_planes(
        sums, stride, tiles, others, tiles_to,
        [&](int64_t, const Int32x8(&pixels)[kTile], int64_t at) LOWBIT_INLINE_LAMBDA {
            LOWBIT_UNROLLED
            for (int j = 0; j < kTile; j++) used |= pixels[j] ^ (pixels[j] >> 31);
            turn_low(pixels, low + at, kChannelPixels);
            if (kHigh) turn_high(pixels, high + at, kChannelPixels);
        },
        [&](int64_t at, int64_t count) LOWBIT_INLINE_LAMBDA {
            prefetch(to.low + at, count);
            if (kHigh) prefetch(to.high + at, count);
        },
        [&](int64_t from, int64_t at, int64_t count) LOWBIT_INLINE_LAMBDA {
            std::copy_n(low + from, count, to.low + at);
            if (kHigh) std::copy_n(high + from, count, to.high + at);
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
