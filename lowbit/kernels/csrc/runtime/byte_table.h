// A function of one byte, computed for many bytes at a time.
#pragma once
#include "runtime/quantized.h"

namespace lowbit::runtime {

class ByteTable {
  public:
    ByteTable() = default;
    explicit ByteTable(const uint8_t* values);
    // Bytes of one grid to those of another that are nearest in value.
    ByteTable(const Grid& from, const Grid& to);

    uint8_t operator[](int byte) const { return values_[byte]; }
    bool is_identity() const { return is_identity_; }

    void apply(const uint8_t* from, int64_t count, uint8_t* to) const;
    // In place, the 16 bytes at each of these offsets.
    void apply_at(const int64_t* offsets, int64_t count, uint8_t* bytes) const;

  private:
    void prepare();

    uint8_t values_[256] = {};
    // Sixteen values each, and what distinguishes them from the sixteen before: see byte_table.cpp.
    alignas(16) uint8_t differences_[16][16] = {};
    bool is_identity_ = false;
};

}  // namespace lowbit::runtime
