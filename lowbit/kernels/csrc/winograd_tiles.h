// Winograd's transforms F(2x2, 3x3) in integers, sixteen tiles at a time: four pixels of a row, or three of a
// kernel, become four points, and what is multiplied point by point becomes pixels again.
//
// Along one axis, with pixels d, kernel g and result y:
//   source    d0 - d2,  d1 + d2,       d2 - d1,       d1 - d3
//   kernel    g0,       g0 + g1 + g2,  g0 - g1 + g2,  g2
//   result    y0 = m0 + (m1 + m2) / 2,  y1 = (m1 - m2) / 2 - m3
// m1 + m2 = 2 (d2 (g0 + g2) + d1 g1) is even whatever is summed up, so nothing is lost: the result is the exact
// sum. The weight's gradient is the same turned round, with dy as
//   gradient  dy0,      dy0 + dy1,     dy0 - dy1,     -dy1
//   kernel    dg0 = m0 + (m1 + m2) / 2,  dg1 = (m1 - m2) / 2,  dg2 = (m1 + m2) / 2 + m3
// Inlined into functions that are compiled for one instruction set each; see winograd_loops.cpp.
#pragma once
#include "loops.h"
#include "packing.h"
#include "winograd_rows.h"

#include <cstring>

namespace lowbit::winograd {

using conv::kPanel;

typedef int16_t Words __attribute__((vector_size(kPanel * sizeof(int16_t))));
typedef uint16_t Pairs __attribute__((vector_size(kPanel * sizeof(uint16_t))));
typedef int32_t Sums __attribute__((vector_size(kPanel / 2 * sizeof(int32_t))));

// Thirty-two bytes as sixteen even and sixteen odd ones. The first of two is the lower half of a word.
template <bool kSigned>
LOWBIT_INLINE void part(const uint8_t* from, Words& even, Words& odd) {
    Pairs pairs;
    memcpy(&pairs, from, sizeof pairs);
    if (kSigned) {
        even = reinterpret_cast<Words>(pairs << 8) >> 8;
        odd = reinterpret_cast<Words>(pairs) >> 8;
    } else {
        even = reinterpret_cast<Words>(pairs & 255);
        odd = reinterpret_cast<Words>(pairs >> 8);
    }
}

LOWBIT_INLINE void put(int16_t* to, const Words& words) { memcpy(to, &words, sizeof words); }

LOWBIT_INLINE void source_points(const Words& d0, const Words& d1, const Words& d2, const Words& d3,
                                 Words (&points)[4]) {
    points[0] = d0 - d2;
    points[1] = d1 + d2;
    points[2] = d2 - d1;
    points[3] = d1 - d3;
}

LOWBIT_INLINE void gradient_points(const Words& first, const Words& second, Words (&points)[4]) {
    points[0] = first;
    points[1] = first + second;
    points[2] = first - second;
    points[3] = -second;
}

LOWBIT_INLINE void kernel_points(const Words& g0, const Words& g1, const Words& g2, Words (&points)[4]) {
    const Words outer = g0 + g2;
    points[0] = g0;
    points[1] = outer + g1;
    points[2] = outer - g1;
    points[3] = g2;
}

// The points of a row of tiles: tile t's are points[i * apart + t]. Its pixels begin at column 2 t of four rows
// of bytes. Sixteen tiles are written at a time, and their bytes read.
template <bool kSigned>
LOWBIT_INLINE void spread_source(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points,
                                 int64_t apart) {
    for (int64_t t = 0; t < tiles; t += kPanel) {
        Words down[4][4];  // [column][point]
        LOWBIT_UNROLLED
        for (int pair = 0; pair < 2; pair++) {
            Words even[4], odd[4];
            LOWBIT_UNROLLED
            for (int i = 0; i < 4; i++) part<kSigned>(rows + i * row_bytes + 2 * (t + pair), even[i], odd[i]);
            source_points(even[0], even[1], even[2], even[3], down[2 * pair]);
            source_points(odd[0], odd[1], odd[2], odd[3], down[2 * pair + 1]);
        }
        LOWBIT_UNROLLED
        for (int i = 0; i < 4; i++) {
            Words along[4];
            source_points(down[0][i], down[1][i], down[2][i], down[3][i], along);
            LOWBIT_UNROLLED
            for (int j = 0; j < 4; j++) put(points + (4 * i + j) * apart + t, along[j]);
        }
    }
}

// The same of an output's gradient, whose tiles are two rows of two pixels.
template <bool kSigned>
LOWBIT_INLINE void spread_gradient(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points,
                                   int64_t apart) {
    for (int64_t t = 0; t < tiles; t += kPanel) {
        Words even[2], odd[2], down[2][4];
        LOWBIT_UNROLLED
        for (int i = 0; i < 2; i++) part<kSigned>(rows + i * row_bytes + 2 * t, even[i], odd[i]);
        gradient_points(even[0], even[1], down[0]);
        gradient_points(odd[0], odd[1], down[1]);
        LOWBIT_UNROLLED
        for (int i = 0; i < 4; i++) {
            Words along[4];
            gradient_points(down[0][i], down[1][i], along);
            LOWBIT_UNROLLED
            for (int j = 0; j < 4; j++) put(points + (4 * i + j) * apart + t, along[j]);
        }
    }
}

// The points of kernels: that of channel c has its taps in taps[k * channels + c]; a multiple of sixteen channels.
LOWBIT_INLINE void spread_kernel(const int16_t* taps, int64_t channels, int16_t* points, int64_t apart) {
    for (int64_t c = 0; c < channels; c += kPanel) {
        Words g[kTaps], down[3][4];
        LOWBIT_UNROLLED
        for (int k = 0; k < kTaps; k++) memcpy(&g[k], taps + k * channels + c, sizeof g[k]);
        LOWBIT_UNROLLED
        for (int j = 0; j < 3; j++) kernel_points(g[j], g[3 + j], g[6 + j], down[j]);
        LOWBIT_UNROLLED
        for (int i = 0; i < 4; i++) {
            Words along[4];
            kernel_points(down[0][i], down[1][i], down[2][i], along);
            LOWBIT_UNROLLED
            for (int j = 0; j < 4; j++) put(points + (4 * i + j) * apart + c, along[j]);
        }
    }
}

// Two channels' tiles side by side: what a panel holds of a step.
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

LOWBIT_INLINE void result_pixels(const Sums (&m)[4], Sums& first, Sums& second) {
    const Sums half = (m[1] + m[2]) >> 1;
    first = m[0] + half;
    second = half - m[2] - m[3];
}

// The points of a column, of eight tiles or channels.
LOWBIT_INLINE void column_points(const int32_t* from, int64_t apart, Sums (&points)[4]) {
    LOWBIT_UNROLLED
    for (int i = 0; i < 4; i++) memcpy(&points[i], from + 4 * i * apart, sizeof points[i]);
}

// Two rows of pixels of sixteen tiles, upper and lower, before they lie side by side: [row][column][tile]. Point i of
// tile t is sums[i * apart + t].
LOWBIT_INLINE void gather_pixels(const int32_t* sums, int64_t apart, int32_t (&pixels)[2][2][kPanel]) {
    for (int64_t t = 0; t < kPanel; t += kPanel / 2) {
        Sums down[2][4];
        LOWBIT_UNROLLED
        for (int j = 0; j < 4; j++) {
            Sums points[4];
            column_points(sums + j * apart + t, apart, points);
            result_pixels(points, down[0][j], down[1][j]);
        }
        LOWBIT_UNROLLED
        for (int i = 0; i < 2; i++) {
            Sums even, odd;
            result_pixels(down[i], even, odd);
            memcpy(&pixels[i][0][t], &even, sizeof even);
            memcpy(&pixels[i][1][t], &odd, sizeof odd);
        }
    }
}

// The sums of 32 pixels of the upper row, then of the lower one.
LOWBIT_INLINE void gather_sums(const int32_t* sums, int64_t apart, int64_t* to) {
    int32_t pixels[2][2][kPanel];
    gather_pixels(sums, apart, pixels);
    for (int64_t i = 0; i < 4 * kPanel; i++) to[i] = pixels[i / (2 * kPanel)][i % 2][i / 2 % kPanel];
}

// The same as values: float(sum) * (scales[tile] * scale) + bias, each operation rounded; no bias when null.
LOWBIT_INLINE void gather_values(const int32_t* sums, int64_t apart, const float* scales, float scale,
                                 const float* bias, float* to) {
    int32_t pixels[2][2][kPanel];
    float of_tile[kPanel];
    gather_pixels(sums, apart, pixels);
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

LOWBIT_INLINE void kernel_taps(const Sums (&m)[4], Sums (&taps)[3]) {
    const Sums half = (m[1] + m[2]) >> 1;
    taps[0] = m[0] + half;
    taps[1] = half - m[2];
    taps[2] = half + m[3];
}

// The nine taps of sixteen channels' gradients, taps[k * 16 + c], from their points sums[i * apart + c].
LOWBIT_INLINE void gather_taps(const int32_t* sums, int64_t apart, int32_t* taps) {
    for (int64_t c = 0; c < kPanel; c += kPanel / 2) {
        Sums down[3][4];
        LOWBIT_UNROLLED
        for (int j = 0; j < 4; j++) {
            Sums points[4], column[3];
            column_points(sums + j * apart + c, apart, points);
            kernel_taps(points, column);
            LOWBIT_UNROLLED
            for (int i = 0; i < 3; i++) down[i][j] = column[i];
        }
        LOWBIT_UNROLLED
        for (int i = 0; i < 3; i++) {
            Sums along[3];
            kernel_taps(down[i], along);
            LOWBIT_UNROLLED
            for (int j = 0; j < 3; j++) memcpy(taps + (3 * i + j) * kPanel + c, &along[j], sizeof along[j]);
        }
    }
}

}  // namespace lowbit::winograd
