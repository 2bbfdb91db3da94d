// ReLU, which leaves a bit per element for its backward pass.
#pragma once
#include "neighbours.h"
#include "packed_bodies.h"

namespace lowbit::neighbours {

LOWBIT_INLINE void relu_forward(const float* x, float* y, uint8_t* bits, int64_t count) {
    std::memset(bits, 0, size_t((count + 7) / 8));
    for (int64_t start = 0; start < count; start += kFlags) {
        const int now = int(count - start < kFlags ? count - start : kFlags);
        uint8_t flags[kFlags + 8];
        // In two loops, which compilers turn into better code than one that writes both.
        for (int i = 0; i < now; ++i) y[start + i] = x[start + i] > 0 ? x[start + i] : 0.0f;
        for (int i = 0; i < now; ++i) flags[i] = x[start + i] > 0;
        std::memset(flags + now, 0, 8);
        put_bits(flags, bits + start / 8, (now + 7) & -8);
    }
}

LOWBIT_INLINE void relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count) {
    const int64_t whole = count / 8;
    for (int64_t byte = 0; byte < whole; ++byte) {
        const int32_t eight = bits[byte];
        for (int i = 0; i < 8; ++i) dx[byte * 8 + i] = dy[byte * 8 + i] * (eight & (1 << i) ? 1.0f : 0.0f);
    }
    for (int64_t i = whole * 8; i < count; ++i) dx[i] = dy[i] * (bits[whole] >> (i % 8) & 1 ? 1.0f : 0.0f);
}

}  // namespace lowbit::neighbours
