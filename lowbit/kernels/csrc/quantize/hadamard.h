// The Walsh-Hadamard transform of blocks, by butterflies; the slow reference is in lowbit/numerics.
#pragma once
#include "common/cpu.h"

#include <cmath>
#include <cstring>

namespace lowbit {

constexpr int kTile = 8192;     // values that are transformed at a time: the L1 and L2 caches hold them
constexpr int kScattered = 16;  // blocks at a time where they are not adjacent

// Many blocks: value b of block i is tile[b * lines + i].
LOWBIT_INLINE void butterflies(float* tile, int block, int lines) {
    for (int half = 1; half < block; half *= 2) {
        for (int pair = 0; pair < block; pair += 2 * half) {
            float* first = tile + pair * lines;
            float* second = first + half * lines;
            for (int i = 0; i < half * lines; ++i) {
                const float a = first[i], b = second[i];
                first[i] = a + b;
                second[i] = a - b;
            }
        }
    }
}

// Adjacent blocks from x on, whose values are `after` elements apart.
LOWBIT_INLINE void transform_adjacent(const float* x, float* y, float* tile, int block, int lines,
                                      int64_t after, float norm) {
    for (int b = 0; b < block; ++b) std::memcpy(tile + b * lines, x + b * after, lines * sizeof(float));
    butterflies(tile, block, lines);
    for (int b = 0; b < block; ++b) {
        const float* from = tile + b * lines;
        float* to = y + b * after;
        for (int i = 0; i < lines; ++i) to[i] = from[i] * norm;
    }
}

// Blocks anywhere: few at a time, since values are gathered one by one.
LOWBIT_INLINE void transform_scattered(const float* x, float* y, float* tile, const int64_t* starts,
                                       int block, int64_t after, int lines, float norm) {
    for (int i = 0; i < lines; ++i) {
        for (int b = 0; b < block; ++b) tile[b * kScattered + i] = x[starts[i] + b * after];
    }
    butterflies(tile, block, kScattered);
    for (int i = 0; i < lines; ++i) {
        for (int b = 0; b < block; ++b) y[starts[i] + b * after] = tile[b * kScattered + i] * norm;
    }
}

LOWBIT_INLINE void hadamard(const float* x, float* y, int64_t before, int64_t size, int64_t after,
                            int64_t block) {
    const float norm = float(1.0 / std::sqrt(double(block)));
    const int64_t groups = before * (size / block), values = block * after;
    alignas(64) float tile[kTile] = {};
    if (after < kScattered) {
        int64_t starts[kScattered];
        for (int64_t line = 0; line < groups * after; line += kScattered) {
            const int64_t left = groups * after - line, now = left < kScattered ? left : kScattered;
            for (int64_t i = 0; i < now; ++i) starts[i] = (line + i) / after * values + (line + i) % after;
            transform_scattered(x, y, tile, starts, int(block), after, int(now), norm);
        }
        return;
    }
    const int64_t most = kTile / block;
    for (int64_t g = 0; g < groups; ++g) {
        for (int64_t first = 0; first < after; first += most) {
            const int64_t at = g * values + first, left = after - first;
            transform_adjacent(x + at, y + at, tile, int(block), int(left < most ? left : most), after, norm);
        }
    }
}

}  // namespace lowbit
