// Small integers into the layouts that the tiles read: channels innermost, four bytes together.
//
// Packed are bytes (four channels in four bytes) or, where a product of bytes could not be exact, int16 (two
// channels in four bytes). Bytes of a source are unsigned: `offset` is added to every value of a signed one.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace lowbit::conv {

constexpr int64_t kPanel = 16;  // channels of a result that are computed together

enum class Packed { bytes, words };

inline int64_t size_of(Packed packed) { return packed == Packed::bytes ? 1 : 2; }

// Integers as they come: int8, or uint8.
struct Integers {
    const uint8_t* first;
    const uint8_t* end;  // of the whole operand: what may be read
    bool is_signed;
};

// packed[places[p] + c] = integers.first[c * apart + p] + offset, for p < pixels and c < channels; up to the
// next multiple of 4 channels it is `offset`. Places count elements.
void pack_planes(Integers integers, int64_t channels, int64_t apart, int64_t pixels, const int64_t* places,
                 int offset, Packed packed, void* target);

// The sum of signed bytes.
int64_t sum_of_bytes(const uint8_t* bytes, int64_t count);

// Sixteen rows of `count` 4-byte groups become `count` groups of sixteen.
void interleave_rows(const uint32_t* rows, int64_t count, uint32_t* target);

}  // namespace lowbit::conv
