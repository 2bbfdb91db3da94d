// forward and grad_input by Winograd's transforms: block after block of tiles, whose points are multiplied with
// those of the kernels while they are in the cache.
#include "winograd.h"

#include "layout.h"
#include "room.h"
#include "threads.h"
#include "winograd_rows.h"
#include "winograd_tiles.h"

#include <algorithm>
#include <cstring>

namespace lowbit::winograd {
namespace {

using conv::kSlack;
using conv::up_to;

constexpr int64_t kMostOutputs = 48;     // of the result's channels, worked out together
constexpr int64_t kMostTiles = 128;      // of a block, so that their points stay in the cache
constexpr int64_t kPixels = 2 * kPanel;  // of a panel, in a row

// How many rows of tiles make a block: those that leave the least of the last panel empty.
int64_t rows_of_block(const Tiling& tiling) {
    const int64_t items = kItemsPerThread * lowbit_threads(), shared = up_to(tiling.rows, items) / items;
    int64_t best = 1;
    for (int64_t rows = 2; rows <= shared && rows * tiling.columns <= kMostTiles; rows++) {
        const int64_t tiles = rows * tiling.columns, other = best * tiling.columns;
        if (tiles * up_to(other, kPanel) >= other * up_to(tiles, kPanel)) best = rows;
    }
    return best;
}

// How many of the result's channels and of a block's panels are worked out together: few channels, whose sums stay
// in the first cache, where a sum is over in a few steps; many, so that kernels are read seldom, where they are large.
struct Together {
    explicit Together(int64_t steps) : outputs(steps <= 64 ? 12 : kMostOutputs), panels(steps <= 64 ? 1 : 2) {}

    int64_t panel() const { return (outputs + kSlack) * kPanel; }  // of sums
    int64_t point() const { return panels * panel(); }

    int64_t outputs, panels;
};

// Tiles of a panel that lie side by side in one image.
struct Piece {
    int64_t pixel, pixels;  // of the panel's row of pixels
    int64_t image, place;   // of the result, and of its upper row's first pixel in a plane of it
    bool is_last_row;       // the lower row is outside
};

class Run {
  public:
    Run(const conv::Convolution& convolution, const conv::Product& product)
        : convolution_(convolution),
          product_(product),
          loops_(loops_of(instruction_set())),
          run_(conv::words_tiles().run),
          tiling_(convolution.batch, convolution.result.height, convolution.result.width),
          steps_(up_to(convolution.source.channels, 2) / 2),
          panel_((steps_ + 1) * kPixels),
          together_(steps_),
          kernel_row_(up_to(convolution.source.channels, kPanel)) {}

    void run() {
        spread_kernels();
        const int64_t rows = rows_of_block(tiling_);
        parallel_for(up_to(tiling_.rows, rows) / rows, [&](int64_t item) {
            run_block(item * rows, std::min(tiling_.rows, (item + 1) * rows));
        });
    }

  private:
    // A matrix for every point: rows are the result's channels, columns the source's.
    void spread_kernels() {
        thread_local Room room, places_room;
        const int64_t outputs = convolution_.result.channels, apart = outputs * kernel_row_;
        int16_t* points = room.of<int16_t>(kPoints * apart);
        int64_t* places = places_room.of<int64_t>(outputs + kSlack);
        for (int64_t o = 0; o < outputs + kSlack; o++) {
            places[o] = std::min(o, outputs - 1) * kernel_row_ * int64_t(sizeof(int16_t));
        }
        kernels_ = points;
        places_ = places;
        parallel_for(outputs, [&](int64_t o) {
            thread_local Room taps_room;
            int16_t* taps = taps_room.of<int16_t>(kTaps * kernel_row_);
            take_taps(o, taps);
            loops_.kernel(taps, kernel_row_, points + o * kernel_row_, apart);
        });
    }

    // taps[k * kernel_row_ + c] of a channel of the result, k being where the tap lies in the source; 0 behind.
    void take_taps(int64_t o, int16_t* taps) const {
        const int64_t in = convolution_.source.channels, out = convolution_.result.channels;
        const uint8_t* all = static_cast<const uint8_t*>(product_.weight->integers);
        const uint8_t* first = all + (product_.transposed ? o : o * in) * kTaps;
        int64_t places[kTaps];
        for (const conv::Tap& tap : convolution_.parts[0].taps) {
            const int64_t row = tap.row + convolution_.above, column = tap.column + convolution_.before;
            places[tap.kernel] = (3 * row + column) * kernel_row_;
        }
        memset(taps, 0, static_cast<size_t>(kTaps * kernel_row_) * sizeof(int16_t));
        conv::pack_planes({first, all + in * out * kTaps, product_.weight->lowest < 0}, in,
                          (product_.transposed ? out : 1) * kTaps, kTaps, places, 0, conv::Packed::words, taps);
    }

    void run_block(int64_t first, int64_t last) const {
        thread_local Room sums_room;
        const int64_t panels = up_to((last - first) * tiling_.columns, kPanel) / kPanel;
        const int16_t* points = spread_block(first, last, panels);
        int32_t* sums = sums_room.of<int32_t>(kPoints * together_.point());
        for (int64_t o = 0; o < convolution_.result.channels; o += together_.outputs) {
            const int64_t outputs = std::min(together_.outputs, convolution_.result.channels - o);
            for (int64_t panel = 0; panel < panels; panel += together_.panels) {
                const int64_t count = std::min(together_.panels, panels - panel);
                multiply(points + panel * panel_, panels, o, outputs, count, sums);
                for (int64_t i = 0; i < count; i++) {
                    Piece pieces[kPanel];
                    const int64_t cut = cut_panel(first, last, panel + i, pieces);
                    finish(sums + i * together_.panel(), o, outputs, pieces, cut);
                }
            }
        }
    }

    // The points of a block's tiles, [points][panels][pairs of channels][16 tiles][2].
    const int16_t* spread_block(int64_t first, int64_t last, int64_t panels) const {
        thread_local Room room, flat_room;
        const int64_t channels = convolution_.source.channels, apart = (panels + 1) * kPanel;
        const int64_t plane = convolution_.source.height * convolution_.source.width;
        int16_t* points = room.of<int16_t>(kPoints * panels * panel_);
        int16_t* flat = flat_room.of<int16_t>(2 * kPoints * apart);
        memset(flat, 0, static_cast<size_t>(2 * kPoints * apart) * sizeof(int16_t));
        const bool is_signed = product_.source->lowest < 0;
        for (int64_t c = 0; c < 2 * steps_; c++) {
            int16_t* to = flat + c % 2 * kPoints * apart;
            if (c < channels) {
                const Channel channel{static_cast<const uint8_t*>(product_.source->integers) + c * plane,
                                      channels * plane, convolution_.source.height, convolution_.source.width,
                                      convolution_.above, convolution_.before, 4};
                spread_rows(tiling_, channel, loops_.source[is_signed], first, last, to, apart);
            } else {
                memset(to, 0, static_cast<size_t>(kPoints * apart) * sizeof(int16_t));
            }
            for (int64_t i = 0; c % 2 && i < kPoints; i++) {
                loops_.interleave(flat + i * apart, to + i * apart, panels,
                                  points + i * panels * panel_ + c / 2 * kPixels, panel_);
            }
        }
        return points;
    }

    // sums[point][panel][outputs][16 tiles] of some panels of a block.
    void multiply(const int16_t* points, int64_t panels, int64_t o, int64_t outputs, int64_t count,
                  int32_t* sums) const {
        const int32_t zeros[kPanel] = {};
        const conv::Segment segment{0, steps_, false};
        const int64_t apart = convolution_.result.channels * kernel_row_;
        for (int64_t i = 0; i < kPoints; i++) {
            for (int64_t panel = 0; panel < count; panel++) {
                const int16_t* tiles = points + (i * panels + panel) * panel_;
                run_({reinterpret_cast<const uint8_t*>(kernels_ + i * apart), places_ + o, outputs, &segment, 1,
                      reinterpret_cast<const uint8_t*>(tiles), 0, zeros,
                      sums + i * together_.point() + panel * together_.panel()});
            }
        }
    }

    // Where the pixels of a panel of the block belong.
    int64_t cut_panel(int64_t first, int64_t last, int64_t panel, Piece* pieces) const {
        int64_t count = 0, tile = panel * kPanel;
        const int64_t end = std::min(tile + kPanel, (last - first) * tiling_.columns);
        while (tile < end) {
            const int64_t row = first + tile / tiling_.columns, column = tile % tiling_.columns;
            const int64_t tiles = std::min(end - tile, tiling_.columns - column);
            const int64_t top = row % tiling_.tile_rows * 2;
            pieces[count++] = {2 * (tile - panel * kPanel),
                               std::min(2 * tiles, convolution_.result.width - 2 * column),
                               row / tiling_.tile_rows, top * convolution_.result.width + 2 * column,
                               top + 1 == convolution_.result.height};
            tile += tiles;
        }
        return count;
    }

    // All values first, then all of them to their places: what has just been written is slow to read.
    void finish(const int32_t* sums, int64_t o, int64_t outputs, const Piece* pieces, int64_t count) const {
        const lowbit_operand &source = *product_.source, &weight = *product_.weight;
        if (product_.sums) {
            int64_t exact[kMostOutputs][2 * kPixels];
            for (int64_t i = 0; i < outputs; i++) loops_.sums(sums + i * kPanel, together_.point(), exact[i]);
            return put(exact, o, outputs, pieces, count, product_.sums);
        }
        float values[kMostOutputs][2 * kPixels], scales[kPanel] = {};
        for (int64_t i = 0; i < count; i++) {
            float* first = scales + pieces[i].pixel / 2;
            std::fill_n(first, (pieces[i].pixels + 1) / 2, source.scale[pieces[i].image * source.of_n]);
        }
        for (int64_t i = 0; i < outputs; i++) {
            loops_.values(sums + i * kPanel, together_.point(), scales,
                          weight.scale[(o + i) * product_.scale_of_channel],
                          product_.bias ? product_.bias + o + i : nullptr, values[i]);
        }
        put(values, o, outputs, pieces, count, product_.values);
    }

    template <class Number>
    void put(const Number (*pixels)[2 * kPixels], int64_t o, int64_t outputs, const Piece* pieces, int64_t count,
             Number* result) const {
        const conv::Image& image = convolution_.result;
        const int64_t plane = image.height * image.width;
        for (int64_t i = 0; i < outputs; i++) {
            for (const Piece* piece = pieces; piece < pieces + count; piece++) {
                Number* to = result + (piece->image * image.channels + o + i) * plane + piece->place;
                const Number* from = pixels[i] + piece->pixel;
                std::copy_n(from, piece->pixels, to);
                if (!piece->is_last_row) std::copy_n(from + kPixels, piece->pixels, to + image.width);
            }
        }
    }

    const conv::Convolution& convolution_;
    const conv::Product& product_;
    const Loops& loops_;
    void (*const run_)(const conv::Strip& strip);
    const Tiling tiling_;
    const int64_t steps_;       // pairs of the source's channels
    const int64_t panel_;       // int16 of a panel: a step more, lest panels share the same few lines of the cache
    const Together together_;
    const int64_t kernel_row_;  // int16 of a row of the kernels' matrices
    const int16_t* kernels_ = nullptr;
    const int64_t* places_ = nullptr;
};

}  // namespace

void run(const conv::Convolution& convolution, const conv::Product& product) { Run(convolution, product).run(); }

}  // namespace lowbit::winograd
