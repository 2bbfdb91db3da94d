// Images as tiles of 4x4 outputs, and the transforms of rows of tiles, compiled for each instruction set.
#pragma once
#include "common/cpu.h"
#include "gemm/microkernel.h"

#include <cstring>

namespace lowbit::winograd {

using gemm::kPanel;

constexpr int64_t kTile = 4;     // outputs of a tile along an axis
constexpr int64_t kSide = 6;     // points of a tile along an axis: kTile + 3 - 1
constexpr int64_t kPoints = 36;  // of a tile
constexpr int64_t kTaps = 9;
constexpr int64_t kPixels = kTile * kPanel;  // of a row of the pixels of sixteen tiles

// A result is the sum of products times 576 = 9 * 64, modulo 2^32. Multiplying by the inverse of 9 modulo
// 2^32 and shifting by 6 bits gives the result itself if 26 bits hold it.
constexpr int64_t kLargestSum = (int64_t{1} << 25) - 1;

// Rows of a channel as int16, separated by the column's number modulo kTile: column 4 t + j of row r is
// first[r * row + j * plane + t].
struct Planes {
    const int16_t* first;
    int64_t row, plane;
};

// The points of a row of tiles, sixteen tiles at a time: point i of tile t is points[i * stride + t].
typedef void (*RowTransform)(const Planes& planes, int64_t tiles, int16_t* points, int64_t stride);

struct Transforms {
    // The sum of the magnitudes of unsigned and of signed bytes.
    int64_t (*magnitude[2])(const uint8_t* bytes, int64_t count);
    // Separates the bytes of a row, kTile * count of them, into planes; for unsigned and for signed bytes.
    void (*separate[2])(const uint8_t* bytes, int64_t count, int16_t* to, int64_t plane);
    RowTransform source, gradient;
    // The points of the kernels of some channels; returns the sum of the magnitudes of all taps.
    int64_t (*kernel)(const int16_t* taps, int64_t channels, int16_t* points, int64_t stride);
    // Interleaves the points of two channels into `panels` panels, `panel` elements from one to the next.
    void (*interleave)(const int16_t* first, const int16_t* second, int64_t panels, int16_t* to,
                       int64_t panel);
    // The exact sums of the pixels of sixteen tiles, to[row * kPixels + 4 * tile + column], and of the taps
    // of sixteen channels, to[tap * kPanel + channel]. With `add`, they are added to those that are there.
    void (*pixels)(const int32_t* sums, int64_t stride, bool add, int32_t* to);
    void (*taps)(const int32_t* sums, int64_t stride, bool add, int64_t* to);
    // float(sum) * scale + bias, each operation rounded; no bias if null.
    void (*values)(const int32_t* sums, int64_t count, float scale, const float* bias, float* to);
};

const Transforms& transforms_for(InstructionSet isa);

struct Tiling {
    Tiling(int64_t batch, int64_t rows, int64_t columns)
        : tile_rows(round_up(rows, kTile) / kTile),
          columns(round_up(columns, kTile) / kTile),
          rows(batch * tile_rows) {}

    int64_t tile_rows;  // of one image
    int64_t columns;    // tiles of a row
    int64_t rows;       // of all images
};

// One channel of every image, with the padding in front.
struct ChannelView {
    const uint8_t* first;
    int64_t image;  // bytes from one image to the next
    int64_t height, width, pad_top, pad_left;
    int64_t reach;  // rows and columns that a tile sees: 6 of an input, 4 of a gradient
    bool is_signed;
};

// The points of the rows of tiles [first, last), one after the other; up to sixteen more tiles may be
// written.
void transform_rows(const Tiling& tiling, const ChannelView& channel, const Transforms& transforms,
                    RowTransform transform, int64_t first, int64_t last, int16_t* points, int64_t stride);

}  // namespace lowbit::winograd
