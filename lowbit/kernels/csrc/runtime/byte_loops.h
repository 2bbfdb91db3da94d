// Loops over bytes, written once and inlined into one function per instruction set (bytes_step.cpp); see
// common/cpu.h.
#pragma once
#include "common/cpu.h"
#include "runtime/quantized.h"

namespace lowbit::runtime {

// A grid as the loops need it.
struct Rounding {
    explicit Rounding(const Grid& grid)
        : scale(grid.scale),
          lowest(static_cast<float>(grid.lowest - grid.zero)),
          highest(static_cast<float>(grid.highest - grid.zero)),
          zero(grid.zero) {}
    float scale, lowest, highest;
    int zero;
};

// rint by adding a number so large that no fraction is left: exact for what is clamped to a byte.
LOWBIT_INLINE uint8_t round_to_byte(float v, const Rounding& to) {
    float steps = v / to.scale;
    steps = steps > to.lowest ? steps : to.lowest;
    steps = steps < to.highest ? steps : to.highest;
    const float shifted = steps + 12582912.0f;  // 1.5 * 2^23
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    return static_cast<uint8_t>(bits - 0x4b400000 + to.zero);
}

LOWBIT_INLINE void quantize_loop(const float* x, int64_t count, const Rounding& to, uint8_t* __restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = round_to_byte(x[i], to);
}

LOWBIT_INLINE void dequantize_loop(const uint8_t* x, int64_t count, float scale, int zero,
                                   float* __restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = static_cast<float>(static_cast<int>(x[i]) - zero) * scale;
}

// What a sum or product needs: two grids, bounds of the activation, the grid of the result.
struct Pair {
    bool product;
    float a_scale, b_scale, lowest, highest;
    int a_zero, b_zero;
    Rounding to;
};

LOWBIT_INLINE float pair_value(const Pair& pair, uint8_t a, uint8_t b) {
    const float x = static_cast<float>(static_cast<int>(a) - pair.a_zero) * pair.a_scale;
    const float y = static_cast<float>(static_cast<int>(b) - pair.b_zero) * pair.b_scale;
    const float v = pair.product ? x * y : x + y;
    const float above = v < pair.lowest ? pair.lowest : v;
    return above > pair.highest ? pair.highest : above;
}

LOWBIT_INLINE void pair_loop(const Pair& pair, const uint8_t* a, const uint8_t* b, int64_t count,
                             uint8_t* __restrict y) {
    if (pair.product) {
        Pair mul = pair;
        mul.product = true;
        for (int64_t i = 0; i < count; i++) y[i] = round_to_byte(pair_value(mul, a[i], b[i]), mul.to);
    } else {
        Pair add = pair;
        add.product = false;
        for (int64_t i = 0; i < count; i++) y[i] = round_to_byte(pair_value(add, a[i], b[i]), add.to);
    }
}

LOWBIT_INLINE void max_loop(const uint8_t* x, int64_t count, uint8_t* __restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = x[i] > y[i] ? x[i] : y[i];
}

LOWBIT_INLINE void sum_loop(const uint8_t* x, int64_t count, int32_t* __restrict sums) {
    for (int64_t i = 0; i < count; i++) sums[i] += x[i];
}

struct ByteLoops {
    void (*quantize)(const float* x, int64_t count, const Rounding& to, uint8_t* y);
    void (*dequantize)(const uint8_t* x, int64_t count, float scale, int zero, float* y);
    void (*pair)(const Pair& pair, const uint8_t* a, const uint8_t* b, int64_t count, uint8_t* y);
    void (*max)(const uint8_t* x, int64_t count, uint8_t* y);
    void (*sum)(const uint8_t* x, int64_t count, int32_t* sums);
};

// For the instruction set in use.
const ByteLoops& byte_loops();

}  // namespace lowbit::runtime
