// Loops over bytes, written once and inlined into one function per instruction set (bytes_step.cpp); see
// common/cpu.h.
#pragma once
#include "common/cpu.h"
#include "runtime/quantized.h"

#include <algorithm>
#include <limits>

namespace lowbit::runtime {

// A grid as the loops need it. With a reciprocal, which takes a while to make, values are not divided.
struct Rounding {
    explicit Rounding(const Grid& grid, const Reciprocal& one = {})
        : scale(grid.scale),
          lowest(static_cast<float>(grid.lowest - grid.zero)),
          highest(static_cast<float>(grid.highest - grid.zero)),
          limit(grid.scale * 1024),
          zero(grid.zero),
          reciprocal(one) {
        reciprocal.is_exact = one.is_exact && limit <= std::numeric_limits<float>::max();
    }
    float scale, lowest, highest;
    float limit;  // of values: what is larger is off the grid
    int zero;
    Reciprocal reciprocal;
};

// The byte of a value, as an int32. rint by adding a number so large that no fraction is left: exact for what
// is clamped to a byte. `kMultiplies` needs FMA instructions and an exact reciprocal.
template <bool kMultiplies>
LOWBIT_INLINE int32_t rounded(float v, const Rounding& to) {
    float steps;
    if (kMultiplies) {  // an infinity would become NaN
        v = v > -to.limit ? v : -to.limit;
        v = v < to.limit ? v : to.limit;
        steps = __builtin_fmaf(v, to.reciprocal.high, v * to.reciprocal.low);
    } else {
        steps = v / to.scale;
    }
    steps = steps > to.lowest ? steps : to.lowest;
    steps = steps < to.highest ? steps : to.highest;
    const float shifted = steps + 12582912.0f;  // 1.5 * 2^23
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    return bits - 0x4b400000 + to.zero;
}

template <bool kMultiplies>
LOWBIT_INLINE void quantize_loop(const float* x, int64_t count, const Rounding& to, uint8_t* __restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = static_cast<uint8_t>(rounded<kMultiplies>(x[i], to));
}

// Up to four channels, `plane` values apart, to pixels of four bytes; of three, the first is repeated.
template <bool kMultiplies>
LOWBIT_INLINE void quantize_pixels_loop(const float* x, int64_t plane, int64_t channels, int64_t count,
                                        const Rounding& to, uint8_t* y) {
    constexpr int64_t kBlock = 64;
    for (int64_t first = 0; first < count; first += kBlock) {
        const int64_t now = std::min(kBlock, count - first);
        uint32_t words[kBlock] = {};
        for (int64_t c = 0; c < channels; c++) {
            const float* from = x + c * plane + first;
            const uint32_t places = (channels == 3 && c == 0 ? 0x01000001u : 1u << (8 * c));
            for (int64_t i = 0; i < now; i++) {
                words[i] |= static_cast<uint32_t>(rounded<kMultiplies>(from[i], to)) * places;
            }
        }
        memcpy(y + 4 * first, words, static_cast<size_t>(4 * now));
    }
}

LOWBIT_INLINE void dequantize_loop(const uint8_t* x, int64_t count, float scale, int zero,
                                   float* __restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = static_cast<float>(static_cast<int>(x[i]) - zero) * scale;
}

LOWBIT_INLINE void max_loop(const uint8_t* x, int64_t count, uint8_t* __restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = x[i] > y[i] ? x[i] : y[i];
}

// The channels of some pixels, `stride` bytes apart.
LOWBIT_INLINE void sum_loop(const uint8_t* x, int64_t stride, int64_t pixels, int64_t channels,
                            int32_t* __restrict sums) {
    constexpr int64_t kBlock = 16, kPixels = 256;  // sums of so many bytes fit 16 bits
    int64_t c = 0;
    for (; c + kBlock <= channels; c += kBlock) {
        for (int64_t first = 0; first < pixels; first += kPixels) {
            uint16_t narrow[kBlock] = {};
            for (int64_t p = first; p < std::min(pixels, first + kPixels); p++) {
                for (int64_t i = 0; i < kBlock; i++)
                    narrow[i] = static_cast<uint16_t>(narrow[i] + x[p * stride + c + i]);
            }
            for (int64_t i = 0; i < kBlock; i++) sums[c + i] += narrow[i];
        }
    }
    for (; c < channels; c++) {
        for (int64_t p = 0; p < pixels; p++) sums[c] += x[p * stride + c];
    }
}

struct ByteLoops {
    void (*quantize)(const float* x, int64_t count, const Rounding& to, uint8_t* y);
    void (*quantize_pixels)(const float* x, int64_t plane, int64_t channels, int64_t count,
                            const Rounding& to, uint8_t* y);
    void (*dequantize)(const uint8_t* x, int64_t count, float scale, int zero, float* y);
    void (*max)(const uint8_t* x, int64_t count, uint8_t* y);
    void (*sum)(const uint8_t* x, int64_t stride, int64_t pixels, int64_t channels, int32_t* sums);
};

// For the instruction set in use.
const ByteLoops& byte_loops();

}  // namespace lowbit::runtime
