// Images as tiles of 2x2 outputs, and the transforms of rows of tiles, compiled for each instruction set.
#pragma once
#include "common/cpu.h"
#include "gemm/microkernel.h"

#include <cstring>

namespace lowbit::winograd {

using gemm::kPanel;

// The points of a row of tiles from rows of bytes.
typedef void (*RowTransform)(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points,
                             int64_t stride);

struct Transforms {
    RowTransform source[2], gradient[2];  // for unsigned and for signed bytes
    void (*kernel)(const int16_t* taps, int64_t channels, int16_t* points, int64_t stride);
    // Interleaves the points of two channels into `panels` panels, `panel` elements from one to the next.
    void (*interleave)(const int16_t* first, const int16_t* second, int64_t panels, int16_t* to,
                       int64_t panel);
    void (*sums)(const int32_t* sums, int64_t stride, int64_t* to);
    void (*values)(const int32_t* sums, int64_t stride, const float* scales, float scale, const float* bias,
                   float* to);
    void (*taps)(const int32_t* sums, int64_t stride, int32_t* taps);
};

const Transforms& transforms_for(InstructionSet isa);

constexpr int64_t kPoints = 16;  // of a tile: four along each axis
constexpr int64_t kTaps = 9;

struct Tiling {
    Tiling(int64_t batch, int64_t rows, int64_t columns)
        : tile_rows((rows + 1) / 2), columns((columns + 1) / 2), rows(batch * tile_rows) {}

    int64_t tile_rows;  // of one image
    int64_t columns;    // tiles of a row
    int64_t rows;       // of all images
};

// One channel of every image, with the padding in front.
struct ChannelView {
    const uint8_t* first;
    int64_t image;  // bytes from one image to the next
    int64_t height, width, pad_top, pad_left;
    int64_t reach;  // rows and columns that a tile sees: 4 of an input, 2 of a gradient
};

// The points of the rows of tiles [first, last), one after the other; up to sixteen more tiles may be
// written.
void transform_rows(const Tiling& tiling, const ChannelView& channel, RowTransform transform, int64_t first,
                    int64_t last, int16_t* points, int64_t stride);

}  // namespace lowbit::winograd
