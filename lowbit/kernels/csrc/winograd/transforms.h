// Images as tiles of 4x4 outputs, and the transforms of tiles, compiled for each instruction set.
//
// The lanes of a vector are the sixteen channels of a panel: every lane is used, however small an image is.
// Pixels of a panel are int16, [row][column][16 channels].
#pragma once
#include "common/cpu.h"
#include "gemm/microkernel.h"

#include <algorithm>

namespace lowbit::winograd {

using gemm::kPanel;

constexpr int64_t kTile = 4;     // outputs of a tile along an axis
constexpr int64_t kSide = 6;     // points of a tile along an axis: kTile + 3 - 1
constexpr int64_t kPoints = 36;  // of a tile
constexpr int64_t kTaps = 9;
constexpr int64_t kPixels = kTile * kTile;  // of a tile

// A result is the sum of products times 576 = 9 * 64, modulo 2^32. Multiplying by the inverse of 9 modulo
// 2^32 and shifting by 6 bits gives the result itself if 26 bits hold it.
constexpr int64_t kLargestSum = (int64_t{1} << 25) - 1;

struct Tiling {
    Tiling(int64_t batch, int64_t rows, int64_t columns)
        : tile_rows(round_up(rows, kTile) / kTile),
          columns(round_up(columns, kTile) / kTile),
          rows(batch * tile_rows) {}

    int64_t tile_rows;  // of one image
    int64_t columns;    // tiles of a row
    int64_t rows;       // of all images
};

// body(image, first row of tiles in it, rows, tiles before them) for the images of the rows [first, last).
template <class Body>
void for_each_image(const Tiling& tiling, int64_t first, int64_t last, const Body& body) {
    for (int64_t row = first; row < last;) {
        const int64_t at = row % tiling.tile_rows, count = std::min(last - row, tiling.tile_rows - at);
        body(row / tiling.tile_rows, at, count, (row - first) * tiling.columns);
        row += count;
    }
}

// The pixels of a panel that belong to some rows of tiles of one image.
struct PanelPixels {
    const int16_t* first;
    int64_t columns;       // pixels of a row
    int64_t rows, across;  // tiles
};

// Where the results of a row of tiles go: channel c of pixel (i, j) to element c * plane + i * width + j.
struct ResultTiles {
    int64_t plane, width;
    int64_t rows, columns, channels;  // inside the image; up to kTile, any, and kPanel
};

// Values float(sum) * scale + bias, each operation rounded; scale and bias (or null) of sixteen channels.
struct ResultValues {
    float* first;
    const float *scale, *bias;
};

struct Transforms {
    // The sum of the magnitudes of unsigned and of signed bytes.
    int64_t (*magnitude[2])(const uint8_t* bytes, int64_t count);
    // Point i of tile t to points[i * stride + t * kPanel].
    void (*source)(const PanelPixels& pixels, int16_t* points, int64_t stride);
    // Pairs of tiles: lane c of point i to points[i * stride + t / 2 * 2 * kPanel + 2 * c + t % 2], where the
    // first tile is number t = `before`. `held` has the points of a pair's first tile until there is a
    // second.
    void (*source_pairs)(const PanelPixels& pixels, int64_t before, int16_t* held, int16_t* points,
                         int64_t stride);
    void (*gradient_pairs)(const PanelPixels& pixels, int64_t before, int16_t* held, int16_t* points,
                           int64_t stride);
    // The points of the kernels of sixteen channels, whose tap k is taps[k * row]; returns the sum of the
    // magnitudes of all taps.
    int64_t (*kernel)(const int16_t* taps, int64_t row, int16_t* points, int64_t stride);
    // The exact sums of a row of tiles from sums[i * stride + t * kPanel] of its points: added to `others`,
    // [tile][16 pixels][16 channels], unless these are the first.
    void (*add_pixels)(const int32_t* sums, int64_t stride, int64_t tiles, bool add, int32_t* others);
    // The same, plus `others` if not null, as values or multiples. Returns whether the multiples fit.
    void (*values)(const int32_t* sums, int64_t stride, int64_t tiles, const int32_t* others,
                   const ResultTiles& tiles_to, const ResultValues& to);
    bool (*multiples)(const int32_t* sums, int64_t stride, int64_t tiles, const int32_t* others,
                      const ResultTiles& tiles_to, const lowbit_multiples& to);
    // The exact sums of the taps of sixteen channels, to[tap * kPanel + channel]. With `add`, they are added
    // to those that are there.
    void (*taps)(const int32_t* sums, int64_t stride, bool add, int64_t* to);
};

const Transforms& transforms_for(InstructionSet isa);

// A tensor of bytes in NCHW, of which panels of channels are loaded.
struct Bytes {
    const uint8_t* first;
    int64_t images, channels, height, width;
    int64_t pad_top, pad_left;
    int64_t reach;  // rows and columns that a tile sees: 6 of an input, 4 of a gradient
    bool is_signed;
};

// The pixels of some rows of tiles, from tile row `first` of the image on, of one panel of channels; zeros
// outside of the image and for channels that it does not have. Valid until the thread calls it again.
PanelPixels load_panel(const Bytes& of, const Tiling& tiling, int64_t image, int64_t panel, int64_t first,
                       int64_t rows);

}  // namespace lowbit::winograd
