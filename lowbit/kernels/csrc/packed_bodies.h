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

// Flags, a byte each of 0 or 1, as bits, lowest first; a multiple of 8 of them.
LOWBIT_INLINE void put_bits(const uint8_t* flags, uint8_t* bits, int count) {
    for (int i = 0; i < count; i += 8) {
        uint64_t eight;
        std::memcpy(&eight, flags + i, sizeof eight);
        bits[i / 8] = uint8_t((eight * 0x0102040810204080u) >> 56);  // flag i comes to bit 56 + i
    }
}

}  // namespace lowbit
