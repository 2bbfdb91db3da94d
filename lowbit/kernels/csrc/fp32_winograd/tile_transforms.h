// The transforms of tiles, with channels in the lanes of vectors, and the change of layout around them.
//
// A block of tiles has its points as [36][tiles][channels]. Each function is inlined for every instruction
// set; multiplications and additions are rounded one by one, so that all give the same bits.
#pragma once
#include "common/cpu.h"

#include <cstring>

namespace lowbit::fp32_winograd {

constexpr int kTile = 4, kSide = 6, kPoints = kSide * kSide;

template <int kLanes>
struct LanesOf {
    typedef float Type __attribute__((vector_size(kLanes * sizeof(float))));
};
template <int kLanes>
using Lanes = typename LanesOf<kLanes>::Type;

template <int kLanes>
LOWBIT_INLINE void get(const float* from, Lanes<kLanes>& lanes) {
    memcpy(&lanes, from, sizeof lanes);
}
template <int kLanes>
LOWBIT_INLINE void put(float* to, const Lanes<kLanes>& lanes) {
    memcpy(to, &lanes, sizeof lanes);
}

// Transforms along one axis; the formulas are in fp32_winograd.h.
struct InputPoints {
    template <class V>
    LOWBIT_INLINE void operator()(const V (&d)[kSide], V (&p)[kSide]) const {
        const V even = d[4] - 4.0f * d[2], odd = d[3] - 4.0f * d[1];
        const V near = d[4] - d[2], twice = 2.0f * (d[3] - d[1]);
        p[0] = 4.0f * (d[0] - d[2]) + near;
        p[1] = even + odd;
        p[2] = even - odd;
        p[3] = near + twice;
        p[4] = near - twice;
        p[5] = (d[5] - d[3]) - 2.0f * twice;
    }
};

struct OutputTile {
    template <class V>
    LOWBIT_INLINE void operator()(const V (&m)[kSide], V (&y)[kTile]) const {
        const V even = m[1] + m[2], odd = m[1] - m[2], even_at_2 = m[3] + m[4], odd_at_2 = m[3] - m[4];
        y[0] = m[0] + even + even_at_2;
        y[1] = odd + 2.0f * odd_at_2;
        y[2] = even + 4.0f * even_at_2;
        y[3] = odd + 8.0f * odd_at_2 + m[5];
    }
};

struct GradientPoints {  // the transpose of OutputTile
    template <class V>
    LOWBIT_INLINE void operator()(const V (&d)[kTile], V (&p)[kSide]) const {
        const V even = d[0] + d[2], odd = d[1] + d[3];
        const V even_at_2 = d[0] + 4.0f * d[2], odd_at_2 = 2.0f * d[1] + 8.0f * d[3];
        p[0] = d[0];
        p[1] = even + odd;
        p[2] = even - odd;
        p[3] = even_at_2 + odd_at_2;
        p[4] = even_at_2 - odd_at_2;
        p[5] = d[3];
    }
};

struct KernelPoints {
    template <class V>
    LOWBIT_INLINE void operator()(const V (&g)[3], V (&p)[kSide]) const {
        const V sum = (g[0] + g[2]) * (-1.0f / 6), at_2 = g[0] * (1.0f / 24) + g[2] * (1.0f / 6);
        const V odd = g[1] * (1.0f / 6), odd_at_2 = g[1] * (1.0f / 12);
        p[0] = 0.25f * g[0];
        p[1] = sum - odd;
        p[2] = sum + odd;
        p[3] = at_2 + odd_at_2;
        p[4] = at_2 - odd_at_2;
        p[5] = g[2];
    }
};

struct GradientKernel {  // the transpose of KernelPoints
    template <class V>
    LOWBIT_INLINE void operator()(const V (&m)[kSide], V (&g)[3]) const {
        const V even = (m[1] + m[2]) * (-1.0f / 6), odd = (m[2] - m[1]) * (1.0f / 6);
        const V even_at_2 = m[3] + m[4], odd_at_2 = m[3] - m[4];
        g[0] = 0.25f * m[0] + even + even_at_2 * (1.0f / 24);
        g[1] = odd + odd_at_2 * (1.0f / 12);
        g[2] = even + even_at_2 * (1.0f / 6) + m[5];
    }
};

// Both axes of a square of vectors: `kFrom` x `kFrom` at from(i, j) to `kTo` x `kTo` at to(i, j, value).
template <class V, int kFrom, int kTo, class Along, class From, class To>
LOWBIT_INLINE void transform(Along along, From from, To to) {
    V down[kTo][kFrom];
    LOWBIT_UNROLLED
    for (int j = 0; j < kFrom; j++) {
        V column[kFrom], out[kTo];
        LOWBIT_UNROLLED
        for (int i = 0; i < kFrom; i++) from(i, j, column[i]);
        along(column, out);
        LOWBIT_UNROLLED
        for (int i = 0; i < kTo; i++) down[i][j] = out[i];
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < kTo; i++) {
        V out[kTo];
        along(down[i], out);
        LOWBIT_UNROLLED
        for (int j = 0; j < kTo; j++) to(i, j, out[j]);
    }
}

// Pixels with their channels next to each other: rows of `columns` pixels.
struct Pixels {
    float* first;
    int64_t columns, channels;
};

// Points of the tiles of `rows` rows of tiles, `across` in each; kSource is the side of what a tile reads.
template <int kLanes, int kSource, class Along>
LOWBIT_INLINE void transform_pixels(Along along, Pixels of, int64_t rows, int64_t across, float* points,
                                    int64_t stride) {
    using V = Lanes<kLanes>;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t tile = 0; tile < across; tile++) {
            const float* corner = of.first + (row * kTile * of.columns + tile * kTile) * of.channels;
            float* own = points + (row * across + tile) * of.channels;
            for (int64_t c = 0; c < of.channels; c += kLanes) {
                transform<V, kSource, kSide>(
                    along,
                    [&](int i, int j, V& value) LOWBIT_INLINE_LAMBDA {
                        get<kLanes>(corner + (i * of.columns + j) * of.channels + c, value);
                    },
                    [&](int i, int j, const V& value)
                        LOWBIT_INLINE_LAMBDA { put<kLanes>(own + (i * kSide + j) * stride + c, value); });
            }
        }
    }
}

template <int kLanes>
LOWBIT_INLINE void input_points(Pixels of, int64_t rows, int64_t across, float* points, int64_t stride) {
    transform_pixels<kLanes, kSide>(InputPoints(), of, rows, across, points, stride);
}

template <int kLanes>
LOWBIT_INLINE void gradient_points(Pixels of, int64_t rows, int64_t across, float* points, int64_t stride) {
    transform_pixels<kLanes, kTile>(GradientPoints(), of, rows, across, points, stride);
}

// The outputs of tiles, from their points.
template <int kLanes>
LOWBIT_INLINE void output_tiles(const float* points, int64_t stride, int64_t rows, int64_t across,
                                Pixels to) {
    using V = Lanes<kLanes>;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t tile = 0; tile < across; tile++) {
            const float* own = points + (row * across + tile) * to.channels;
            float* corner = to.first + (row * kTile * to.columns + tile * kTile) * to.channels;
            for (int64_t c = 0; c < to.channels; c += kLanes) {
                transform<V, kSide, kTile>(
                    OutputTile(),
                    [&](int i, int j, V& value)
                        LOWBIT_INLINE_LAMBDA { get<kLanes>(own + (i * kSide + j) * stride + c, value); },
                    [&](int i, int j, const V& value) LOWBIT_INLINE_LAMBDA {
                        put<kLanes>(corner + (i * to.columns + j) * to.channels + c, value);
                    });
            }
        }
    }
}

// Kernels as a product reads them: where one of 16 lanes, and where the next channel of the sum is in memory;
// `turned` kernels have their last tap first.
template <class Tap>
struct Taps {
    Tap* first;
    int64_t lane, channel;
    bool turned;
    LOWBIT_INLINE Tap* at(int64_t c, int64_t lane_at, int i, int j) const {
        const int place = 3 * i + j;
        return first + c * channel + lane_at * lane + (turned ? 8 - place : place);
    }
};
using Kernels = Taps<const float>;
using KernelGradients = Taps<float>;

// Points of 16 output channels: [36][channels][16], the points `stride` apart.
template <int kLanes>
LOWBIT_INLINE void kernel_points(Kernels of, int64_t channels, float* points, int64_t stride) {
    using V = Lanes<kLanes>;
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t lane = 0; lane < 16; lane += kLanes) {
            transform<V, 3, kSide>(
                KernelPoints(),
                [&](int i, int j, V& value) LOWBIT_INLINE_LAMBDA {
                    float taps[kLanes];
                    for (int l = 0; l < kLanes; l++) taps[l] = *of.at(c, lane + l, i, j);
                    get<kLanes>(taps, value);
                },
                [&](int i, int j, const V& value) LOWBIT_INLINE_LAMBDA {
                    put<kLanes>(points + (i * kSide + j) * stride + c * 16 + lane, value);
                });
        }
    }
}

// The gradient of 16 output channels' kernels, from sums of points, [36][channels] rows `row` apart.
template <int kLanes>
LOWBIT_INLINE void gradient_kernels(const float* points, int64_t stride, int64_t row, int64_t channels,
                                    KernelGradients to) {
    using V = Lanes<kLanes>;
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t lane = 0; lane < 16; lane += kLanes) {
            transform<V, kSide, 3>(
                GradientKernel(),
                [&](int i, int j, V& value) LOWBIT_INLINE_LAMBDA {
                    get<kLanes>(points + (i * kSide + j) * stride + c * row + lane, value);
                },
                [&](int i, int j, const V& value) LOWBIT_INLINE_LAMBDA {
                    for (int l = 0; l < kLanes; l++) *to.at(c, lane + l, i, j) = value[l];
                });
        }
    }
}

// A block of 8 x 8 numbers, turned over its diagonal; rows are `from_row` and `to_row` apart.
LOWBIT_INLINE void transpose_8x8(const float* from, int64_t from_row, float* to, int64_t to_row) {
    using V = Lanes<8>;
#if defined(__clang__)
#define LOWBIT_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
    typedef int32_t Places __attribute__((vector_size(32)));
#define LOWBIT_PICK(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif
    V rows[8], pairs[8], fours[8];
    LOWBIT_UNROLLED
    for (int i = 0; i < 8; i++) get<8>(from + i * from_row, rows[i]);
    LOWBIT_UNROLLED
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = LOWBIT_PICK(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = LOWBIT_PICK(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < 8; i += 4) {
        LOWBIT_UNROLLED
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = LOWBIT_PICK(pairs[i + j], pairs[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            fours[i + 2 * j + 1] = LOWBIT_PICK(pairs[i + j], pairs[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    LOWBIT_UNROLLED
    for (int i = 0; i < 4; i++) {
        put<8>(to + i * to_row, LOWBIT_PICK(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
        put<8>(to + (i + 4) * to_row, LOWBIT_PICK(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
    }
#undef LOWBIT_PICK
}

// [rows][columns] to [columns][rows], for rows that are a multiple of 8 or columns that are.
LOWBIT_INLINE void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                             int64_t to_row) {
    if (rows < 8 || columns < 8) {
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < columns; j++) to[j * to_row + i] = from[i * from_row + j];
        }
        return;
    }
    for (int64_t i = 0; i < rows; i += 8) {
        // The last block overlaps the one before where less than 8 are left.
        const int64_t row = i + 8 <= rows ? i : rows - 8;
        for (int64_t j = 0; j < columns; j += 8) {
            const int64_t column = j + 8 <= columns ? j : columns - 8;
            transpose_8x8(from + row * from_row + column, from_row, to + column * to_row + row, to_row);
        }
    }
}

}  // namespace lowbit::fp32_winograd
