// grad_weight with Winograd: for some rows of tiles at a time, both operands are transformed and multiplied
// point by point, and the sums over these tiles are transformed to the nine taps.
#include "common/scratch.h"
#include "common/threads.h"
#include "winograd/products.h"
#include "winograd/transforms.h"
#include "winograd/winograd.h"

#include <algorithm>

namespace lowbit::winograd {
namespace {

constexpr int64_t kTilesPerPass = 256;  // large, since taps are transformed per pass; small, since points
                                        // stay in the cache
constexpr int64_t kPanelsPerBlock = 2;  // of outputs, and of channels
constexpr int64_t kPair = 2 * kPanel;   // int16 elements of a pair of tiles
// Sums of a block, [point][panel of outputs][panel of channels][16 outputs][16 channels]; a point's are no
// power of two, so that the points of a tile use different cache sets.
constexpr int64_t kPanelSums = kPanel * kPanel;
constexpr int64_t kPointSums = kPanelsPerBlock * kPanelsPerBlock * kPanelSums + kPanel;
constexpr int64_t kPanelTaps = kTaps * kPanel,
                  kBlockTaps = kPanelsPerBlock * kPanelsPerBlock * kPanel * kPanelTaps;

class GradWeight {
  public:
    GradWeight(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x)
        : g_(plan.g),
          dy_(dy),
          x_(x),
          transforms_(transforms_for(instruction_set())),
          products_(point_products()),
          of_dy_{bytes_of(dy), g_.batch, g_.outputs, plan.out_h, plan.out_w, 0, 0, kTile, dy.lowest < 0},
          of_x_{bytes_of(x), g_.batch,    g_.channels, g_.height,   g_.width,
                g_.pad_top,  g_.pad_left, kSide,       x.lowest < 0},
          tiling_(g_.batch, plan.out_h, plan.out_w),
          dy_panels_(ceil_div(g_.outputs, kPanel)),
          x_panels_(ceil_div(g_.channels, kPanel)),
          blocks_(ceil_div(x_panels_, kPanelsPerBlock)),
          rows_(std::clamp(kTilesPerPass / tiling_.columns, int64_t{1}, tiling_.rows)),
          row_(ceil_div(rows_ * tiling_.columns, 2) * kPair) {}

    // To dw, or the exact sums to `exact` if given.
    void run(float* dw, int64_t* exact) {
        allocate();
        for (int64_t first = 0; first < tiling_.rows; first += rows_) {
            const int64_t last = std::min(tiling_.rows, first + rows_);
            transform(first, last);
            parallel_for(ceil_div(dy_panels_, kPanelsPerBlock) * blocks_, [&](int64_t block) {
                thread_local Scratch taps_scratch;
                int64_t* taps = taps_ ? taps_ + block * kBlockTaps : taps_scratch.get<int64_t>(kBlockTaps);
                sum_block(block, (last - first) * tiling_.columns, first == 0, taps);
                if (last == tiling_.rows) store_block(block, taps, dw, exact);
            });
        }
    }

  private:
    void allocate() {
        thread_local Scratch dy_scratch, x_scratch, magnitudes_scratch, taps_scratch;
        dy_points_ = dy_scratch.get<int16_t>(kPoints * point(dy_panels_));
        x_points_ = x_scratch.get<int16_t>(kPoints * point(x_panels_));
        magnitudes_ = magnitudes_scratch.get<int64_t>(g_.outputs);
        if (rows_ < tiling_.rows) {
            taps_ = taps_scratch.get<int64_t>(ceil_div(dy_panels_, kPanelsPerBlock) * blocks_ * kBlockTaps);
        }
    }

    // int16 elements of a point of an operand; not a power of two, so that points use different cache sets.
    int64_t point(int64_t panels) const { return panels * row_ + kPair; }

    // Transforms rows of tiles of both operands to [point][panel][pair of tiles][16 channels][2].
    void transform(int64_t first, int64_t last) {
        const int64_t tiles = (last - first) * tiling_.columns;
        parallel_for(dy_panels_, [&](int64_t panel) {
            transform_panel(of_dy_, transforms_.gradient_pairs, first, last, panel, dy_points_ + panel * row_,
                            point(dy_panels_));
        });
        parallel_for(x_panels_, [&](int64_t panel) {
            transform_panel(of_x_, transforms_.source_pairs, first, last, panel, x_points_ + panel * row_,
                            point(x_panels_));
        });
        const int64_t pair = 2 * kPixels * max_magnitude(dy_) * max_magnitude(x_);
        const bool fits = ceil_div(tiles, 2) * pair <= kLargestSum || largest_tap(first, last) <= kLargestSum;
        pairs_together_ = fits ? tiles : kLargestSum / pair;
    }

    // A tap is at most the largest pixel times the sum of a gradient's magnitudes. Where that is too large,
    // fewer tiles are summed at a time: as many as the largest gradient would allow.
    int64_t largest_tap(int64_t first, int64_t last) {
        parallel_for(g_.outputs, [&](int64_t o) { magnitudes_[o] = magnitude(o, first, last); });
        return *std::max_element(magnitudes_, magnitudes_ + g_.outputs) * max_magnitude(x_);
    }

    void transform_panel(const Bytes& of, decltype(Transforms::source_pairs) transform, int64_t first,
                         int64_t last, int64_t panel, int16_t* points, int64_t stride) const {
        int16_t held[kPoints * kPanel];
        for_each_image(tiling_, first, last, [&](int64_t n, int64_t at, int64_t rows, int64_t before) {
            transform(load_panel(of, tiling_, n, panel, at, rows), before, held, points, stride);
        });
        const int64_t tiles = (last - first) * tiling_.columns;
        if (tiles % 2) {  // the last pair has a tile of zeros
            static const int16_t zeros[kSide * kSide * kPanel] = {};
            transform({zeros, kSide, 1, 1}, tiles, held, points, stride);
        }
    }

    // The sum of the magnitudes of an output's gradients in the rows of tiles [first, last).
    int64_t magnitude(int64_t o, int64_t first, int64_t last) const {
        int64_t sum = 0;
        for_each_image(tiling_, first, last, [&](int64_t n, int64_t at, int64_t count, int64_t) {
            const int64_t rows = std::min(kTile * count, of_dy_.height - kTile * at);
            const int64_t row = (n * of_dy_.channels + o) * of_dy_.height + kTile * at;
            sum += transforms_.magnitude[of_dy_.is_signed](of_dy_.first + row * of_dy_.width,
                                                           rows * of_dy_.width);
        });
        return sum;
    }

    // The taps of a block, summed over these tiles, and added to those of the tiles before.
    void sum_block(int64_t block, int64_t tiles, bool is_first, int64_t* taps) const {
        thread_local Scratch scratch;
        int32_t* sums = scratch.get<int32_t>(kPoints * kPointSums);
        const int64_t first_o = block / blocks_ * kPanelsPerBlock,
                      first_c = block % blocks_ * kPanelsPerBlock;
        const int64_t last_o = std::min(dy_panels_, first_o + kPanelsPerBlock);
        const int64_t last_c = std::min(x_panels_, first_c + kPanelsPerBlock);
        const int64_t pairs = ceil_div(tiles, 2);
        for (int64_t pair = 0; pair < pairs; pair += pairs_together_) {
            const int64_t steps = std::min(pairs_together_, pairs - pair);
            for (int64_t i = 0; i < kPoints; i++) {
                const int16_t* dy = dy_points_ + i * point(dy_panels_) + pair * kPair;
                const int16_t* x = x_points_ + i * point(x_panels_) + pair * kPair;
                int32_t* to = sums + i * kPointSums;
                for (int64_t o = first_o; o < last_o; o++) {
                    for (int64_t c = first_c; c < last_c; c++, to += kPanelSums) {
                        products_.by_step({dy + o * row_, kRun * kPair, kPanel, steps, x + c * row_, to});
                    }
                }
            }
            const int64_t rows = (last_o - first_o) * (last_c - first_c) * kPanel;
            for (int64_t row = 0; row < rows; row++) {
                transforms_.taps(sums + row * kPanel, kPointSums, !is_first || pair, taps + row * kPanelTaps);
            }
        }
    }

    void store_block(int64_t block, const int64_t* taps, float* dw, int64_t* exact) const {
        const int64_t first_o = block / blocks_ * kPanelsPerBlock,
                      first_c = block % blocks_ * kPanelsPerBlock;
        const int64_t last_o = std::min(dy_panels_, first_o + kPanelsPerBlock);
        const int64_t last_c = std::min(x_panels_, first_c + kPanelsPerBlock);
        for (int64_t panel_o = first_o; panel_o < last_o; panel_o++) {
            for (int64_t panel_c = first_c; panel_c < last_c; panel_c++, taps += kPanel * kPanelTaps) {
                const int64_t outputs = std::min(kPanel, g_.outputs - panel_o * kPanel);
                for (int64_t o = 0; o < outputs; o++) {
                    store_row(panel_o * kPanel + o, panel_c * kPanel, taps + o * kPanelTaps, dw, exact);
                }
            }
        }
    }

    // The taps of sixteen channels of an output, from channel `first` on.
    void store_row(int64_t o, int64_t first, const int64_t* taps, float* dw, int64_t* exact) const {
        for (int64_t c = first; c < std::min(g_.channels, first + kPanel); c++) {
            const int64_t at = (o * g_.channels + c) * kTaps;
            const int64_t* from = taps + c - first;
            if (exact) {
                for (int64_t k = 0; k < kTaps; k++) exact[at + k] = from[k * kPanel];
            } else {
                const float scale = dy_.scale[o * dy_.of_c] * x_.scale[c * x_.of_c];
                for (int64_t k = 0; k < kTaps; k++) {
                    dw[at + k] = static_cast<float>(from[k * kPanel]) * scale;
                }
            }
        }
    }

    static const uint8_t* bytes_of(const lowbit_operand& operand) {
        return static_cast<const uint8_t*>(operand.integers);
    }

    const lowbit_geometry& g_;
    const lowbit_operand &dy_, &x_;
    const Transforms& transforms_;
    const PointProducts& products_;
    const Bytes of_dy_, of_x_;
    const Tiling tiling_;
    const int64_t dy_panels_, x_panels_;  // of outputs, and of channels
    const int64_t blocks_;                // of panels of channels
    const int64_t rows_;                  // of tiles per pass
    const int64_t row_;                   // int16 elements of a point of a panel
    int16_t *dy_points_ = nullptr, *x_points_ = nullptr;
    int64_t* magnitudes_ = nullptr;  // of the outputs' gradients, of this pass
    int64_t pairs_together_ = 0;     // of tiles, whose taps are exact
    int64_t* taps_ = nullptr;        // [block][output][tap][16 channels], between passes
};

}  // namespace

void grad_weight(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums) {
    GradWeight(plan, dy, x).run(dw, sums);
}

}  // namespace lowbit::winograd
