// Images cut into tiles of 2x2 pixels of the result: rows of tiles, counted over all images, and their points.
#pragma once
#include "winograd_loops.h"

#include <stdint.h>

namespace lowbit::winograd {

constexpr int64_t kPoints = 16;  // of a tile: four along each axis
constexpr int64_t kTaps = 9;

struct Tiling {
    Tiling(int64_t batch, int64_t rows, int64_t columns)
        : tile_rows((rows + 1) / 2), columns((columns + 1) / 2), rows(batch * tile_rows) {}

    int64_t tile_rows;  // of an image
    int64_t columns;    // tiles of a row
    int64_t rows;       // of all images
};

// Bytes that are cut up: a channel's pixels of every image, and the padding in front of them.
struct Channel {
    const uint8_t* first;
    int64_t image;  // from one to the next
    int64_t height, width, above, before;
    int64_t reach;  // rows and columns of bytes that a tile sees: 4 of a source, 2 of a gradient
};

// The points of the rows of tiles [first, last), tile after tile; up to sixteen more may be written.
void spread_rows(const Tiling& tiling, const Channel& channel, Spread spread, int64_t first, int64_t last,
                 int16_t* points, int64_t apart);

}  // namespace lowbit::winograd
