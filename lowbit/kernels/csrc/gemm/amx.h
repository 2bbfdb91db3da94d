// AMX instructions: tdpbusd multiplies a tile of 16 rows of 64 bytes with another, sixteen VNNI steps for
// each row.
//
// A left tile is 16 rows (pixels, or channels) of 16 words of four unsigned bytes; rows are any constant
// stride apart. A right tile is the words of 16 channels next to each other, which is how panels are packed:
// [word][16 channels][4 signed bytes]. Sums are exact in int32, as with VNNI.
//
// Four of the eight tile registers hold sums, which hides the latency: 2 left times 2 right tiles, or 4
// times 1. Two hold operands of 16 words, and two hold operands of `tail` words for the end of a run that is
// no multiple of 16. Instructions are inline assembly, because GCC's intrinsics do not declare that they
// access memory, and a tile's number must be a constant of the instruction.
#pragma once
#include "common/cpu.h"

#if LOWBIT_AMX
#define LOWBIT_AMX_INLINE LOWBIT_TARGET_AMX LOWBIT_INLINE

namespace lowbit::amx {

constexpr int64_t kWords = 16, kRows = 16, kBytes = 64;  // words, rows and bytes of a row of a full tile

// The memory format of ldtilecfg and sttilecfg.
struct alignas(64) TileConfigData {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfigData) == 64);

// Configures the calling thread's tiles for left tiles of `rows` rows and tails of `tail` words (0: none).
// The destructor restores the previous configuration, because oneDNN may rely on its own.
class TileConfig {
  public:
    TileConfig(int64_t rows, int64_t tail);
    ~TileConfig();
    TileConfig(const TileConfig&) = delete;
    TileConfig& operator=(const TileConfig&) = delete;

  private:
    TileConfigData before_;
};

template <int kTile>
LOWBIT_AMX_INLINE void load(const void* from, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
LOWBIT_AMX_INLINE void store(void* to, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

template <int kSums, int kLeft, int kRight>
LOWBIT_AMX_INLINE void add_products() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kLeft), "i"(kRight));
}

// The rows of a left tile.
struct LeftTile {
    const uint8_t* first;
    int64_t stride;
};

// Sum tile i * kRights + j += left tile i * right tile j.
template <int kLefts, int kRights, int kTail, int kStep = 0>
LOWBIT_AMX_INLINE void add_tile(const LeftTile (&left)[kLefts], const uint8_t* right, int64_t panel,
                                int64_t at) {
    constexpr int kA = 4 + 2 * kTail, kB = kA + 1;
    // Back and forth, so that the last left tile of one panel is the first of the next and stays loaded.
    constexpr int j = kStep / kLefts, k = kStep % kLefts, i = j % 2 ? kLefts - 1 - k : k;
    if constexpr (k == 0) load<kB>(right + j * panel, kBytes);
    if constexpr (k != 0 || j == 0) load<kA>(left[i].first + at, left[i].stride);
    add_products<i * kRights + j, kA, kB>();
    if constexpr (kStep + 1 < kLefts * kRights)
        add_tile<kLefts, kRights, kTail, kStep + 1>(left, right, panel, at);
}

// Adds `words` words of every row, starting `at` bytes from its beginning: full tiles, then tails. Returns
// the right operand after them.
template <int kLefts, int kRights>
LOWBIT_AMX_INLINE const uint8_t* add_words(const LeftTile (&left)[kLefts], const uint8_t* right,
                                           int64_t panel, int64_t at, int64_t words, int64_t tail) {
    for (; words >= kWords; words -= kWords, at += kWords * 4, right += kWords * kBytes) {
        add_tile<kLefts, kRights, 0>(left, right, panel, at);
    }
    for (; words > 0; words -= tail, at += tail * 4, right += tail * kBytes) {
        add_tile<kLefts, kRights, 1>(left, right, panel, at);
    }
    return right;
}

}  // namespace lowbit::amx
#endif
