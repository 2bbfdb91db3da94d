// Half a byte per integer and a bit per truth value, for what is kept from the forward to the backward pass.
// Bytes are put together as on a little-endian processor, as all are that this runs on.
#pragma once
#include <cstring>

#include "axes.h"

namespace lowbit {

typedef uint16_t __attribute__((may_alias, aligned(1))) Pair;

LOWBIT_INLINE void pack_nibbles(const uint8_t* q, uint8_t* packed, int64_t count) {
    const Pair* pairs = reinterpret_cast<const Pair*>(q);
    const int64_t whole = count / 2;
    for (int64_t i = 0; i < whole; ++i) packed[i] = uint8_t((pairs[i] & 0x0f) | (pairs[i] >> 4 & 0xf0));
    if (count % 2) packed[whole] = q[count - 1] & 0x0f;
}

// Both halves of a byte as bytes; `sign` is 8 where the fourth bit is one, and fills the four above.
LOWBIT_INLINE uint16_t unpacked(uint8_t byte, uint16_t sign) {
    const uint16_t pair = uint16_t((byte & 0x0f) | (byte & 0xf0) << 4);
    return uint16_t(pair | uint16_t((pair & sign) * 0x1e));
}

LOWBIT_INLINE void unpack_nibbles(const uint8_t* packed, uint8_t* q, int64_t count, int32_t is_signed) {
    Pair* pairs = reinterpret_cast<Pair*>(q);
    const uint16_t sign = is_signed ? 0x0808 : 0;
    const int64_t whole = count / 2;
    for (int64_t i = 0; i < whole; ++i) pairs[i] = unpacked(packed[i], sign);
    if (count % 2) q[count - 1] = uint8_t(unpacked(packed[whole], sign));
}

constexpr int kFlags = 1024;

// Ors flags, a byte each of 0 or 1, into bits that begin at a byte's first; a multiple of 8 of them. Ors, since a byte
// may hold bits of two stretches: threads would have to part the tensor at multiples of 8 elements.
LOWBIT_INLINE void put_bits(const uint8_t* flags, uint8_t* bits, int count) {
    for (int i = 0; i < count; i += 8) {
        uint64_t eight;
        std::memcpy(&eight, flags + i, sizeof eight);
        bits[i / 8] |= uint8_t((eight * 0x0102040810204080u) >> 56);  // flag i comes to bit 56 + i
    }
}

template <class Scales>
LOWBIT_INLINE void inside(const float* x, uint8_t* flags, Scales scales, int count, float lowest, float highest) {
    for (int i = 0; i < count; ++i) {
        const float v = x[i] / scales[i];
        flags[i] = (v >= lowest) & (v <= highest);
    }
}

LOWBIT_INLINE void mask_bits(const float* x, uint8_t* bits, const float* scales, const lowbit_axes& axes,
                             int32_t lowest, int32_t highest) {
    const Turns turns(axes);
    const float lower = float(lowest) - 0.5f, upper = float(highest) + 0.5f;
    if (!turns.elements()) return;
    std::memset(bits, 0, size_t((turns.elements() + 7) / 8));
    each_stretch(turns, scales, [=](int64_t start, int64_t count, const float* own, bool each) LOWBIT_INLINE_LAMBDA {
        for (int64_t done = 0; done < count;) {
            const int64_t at = start + done, left = count - done;
            const int shift = int(at % 8), now = int(left < kFlags - shift ? left : kFlags - shift);
            uint8_t flags[kFlags + 8];
            std::memset(flags, 0, 8);
            if (each) {
                inside(x + at, flags + shift, ScaleEach{own + done}, now, lower, upper);
            } else {
                inside(x + at, flags + shift, OneScale{*own}, now, lower, upper);
            }
            std::memset(flags + shift + now, 0, 8);
            put_bits(flags, bits + at / 8, (shift + now + 7) & -8);
            done += now;
        }
    });
}

LOWBIT_INLINE void apply_mask(const float* dy, const uint8_t* bits, float* dx, int64_t count) {
    const int64_t whole = count / 8;
    for (int64_t byte = 0; byte < whole; ++byte) {
        const int32_t eight = bits[byte];
        for (int i = 0; i < 8; ++i) dx[byte * 8 + i] = eight & (1 << i) ? dy[byte * 8 + i] : 0.0f;
    }
    for (int64_t i = whole * 8; i < count; ++i) dx[i] = bits[whole] >> (i % 8) & 1 ? dy[i] : 0.0f;
}

}  // namespace lowbit
