// grad_weight with Winograd: for some rows of tiles at a time, both operands are transformed and multiplied
// point by point, and the sums over these tiles are transformed to the nine taps.
#include "common/scratch.h"
#include "common/threads.h"
#include "gemm/packing.h"
#include "winograd/transforms.h"
#include "winograd/winograd.h"

#include <algorithm>
#include <cstring>

namespace lowbit::winograd {
namespace {

using gemm::kSlack;

constexpr int64_t kMaxOutputs = 66;     // computed together: 64 are a multiple of six and two more
constexpr int64_t kTilesPerPass = 128;  // large, since taps are transformed per pass; small, since points
                                        // stay in the cache
// A block is a strip of outputs and some panels of channels. Its sums of a point are no power of two, so
// that the points of a tile use different cache sets.
constexpr int64_t kPanelsPerBlock = 2;
constexpr int64_t kPanelSums = (kMaxOutputs + kSlack) * kPanel;
constexpr int64_t kPointSums = kPanelsPerBlock * kPanelSums + kPanel;
constexpr int64_t kPanelTaps = kTaps * kPanel, kBlockTaps = kMaxOutputs * kPanelsPerBlock * kPanelTaps;

class GradWeight {
  public:
    GradWeight(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x)
        : g_(plan.g),
          dy_(dy),
          x_(x),
          out_h_(plan.out_h),
          out_w_(plan.out_w),
          transforms_(transforms_for(instruction_set())),
          microkernel_(gemm::int16_microkernel().run),
          tiling_(g_.batch, out_h_, out_w_),
          strips_(round_up(g_.outputs, kMaxOutputs) / kMaxOutputs),
          panels_(round_up(g_.channels, kPanel) / kPanel),
          blocks_(round_up(panels_, kPanelsPerBlock) / kPanelsPerBlock),
          rows_(std::max<int64_t>(1, kTilesPerPass / tiling_.columns)),
          row_(round_up(rows_ * tiling_.columns, kPanel) + kPanel),
          point_(g_.outputs * row_ + 3 * kPanel) {}

    // To dw, or the exact sums to `exact` if given.
    void run(float* dw, int64_t* exact) {
        allocate();
        for (int64_t first = 0; first < tiling_.rows; first += rows_) {
            const int64_t last = std::min(tiling_.rows, first + rows_);
            transform(first, last);
            parallel_for(strips_ * blocks_, [&](int64_t block) {
                thread_local Scratch taps_scratch;
                int64_t* taps = taps_ ? taps_ + block * kBlockTaps : taps_scratch.get<int64_t>(kBlockTaps);
                sum_block(block, (last - first) * tiling_.columns, first == 0, taps);
                if (last == tiling_.rows) store_block(block, taps, dw, exact);
            });
        }
    }

  private:
    void allocate() {
        thread_local Scratch dy_scratch, x_scratch, magnitudes_scratch, taps_scratch, offsets_scratch;
        dy_points_ = dy_scratch.get<int16_t>(kPoints * point_);
        x_points_ = x_scratch.get<int16_t>(kPoints * panels_ * kPanel * row_);
        magnitudes_ = magnitudes_scratch.get<int64_t>(g_.outputs);
        if (rows_ < tiling_.rows) taps_ = taps_scratch.get<int64_t>(strips_ * blocks_ * kBlockTaps);
        row_offsets_ = offsets_scratch.get<int64_t>(g_.outputs + kSlack);
        for (int64_t o = 0; o < g_.outputs + kSlack; o++) {
            row_offsets_[o] = std::min(o, g_.outputs - 1) * row_ * int64_t(sizeof(int16_t));
        }
    }

    // Transforms rows of tiles: dy to [point][output][tile], x to [point][panel][pair of tiles][16
    // channels][2].
    void transform(int64_t first, int64_t last) {
        const int64_t tiles = (last - first) * tiling_.columns;
        parallel_for(g_.outputs, [&](int64_t o) {
            const int64_t plane = out_h_ * out_w_;
            const ChannelView channel{
                bytes_of(dy_) + o * plane, g_.outputs * plane, out_h_, out_w_, 0, 0, kTile, dy_.lowest < 0};
            magnitudes_[o] = magnitude(channel, first, last);
            int16_t* points = dy_points_ + o * row_;
            transform_rows(tiling_, channel, transforms_, transforms_.gradient, first, last, points, point_);
            // The transform writes sixteen tiles at a time: tiles beyond the last must add nothing.
            for (int64_t i = 0; i < kPoints; i++) {
                std::fill(points + i * point_ + tiles, points + i * point_ + row_, 0);
            }
        });
        parallel_for(panels_, [&](int64_t panel) { transform_panel(first, last, panel); });
        // A tap is at most the largest pixel times the sum of a gradient's magnitudes. Where that is too
        // large, fewer tiles are summed at a time: as many as the largest gradient would allow.
        const int64_t largest = *std::max_element(magnitudes_, magnitudes_ + g_.outputs) * max_magnitude(x_);
        const int64_t pair = 2 * kTile * kTile * max_magnitude(dy_) * max_magnitude(x_);
        pairs_together_ = largest <= kLargestSum ? tiles : kLargestSum / pair;
    }

    // The sum of the magnitudes of a channel's pixels in the rows of tiles [first, last).
    int64_t magnitude(const ChannelView& channel, int64_t first, int64_t last) const {
        int64_t sum = 0;
        for (int64_t row = first; row < last;) {
            const int64_t n = row / tiling_.tile_rows, at = row % tiling_.tile_rows;
            const int64_t count = std::min(last - row, tiling_.tile_rows - at);
            const int64_t rows = std::min(kTile * count, channel.height - kTile * at);
            const uint8_t* pixels = channel.first + n * channel.image + kTile * at * channel.width;
            sum += transforms_.magnitude[channel.is_signed](pixels, rows * channel.width);
            row += count;
        }
        return sum;
    }

    void transform_panel(int64_t first, int64_t last, int64_t panel) {
        thread_local Scratch scratch;
        const int64_t plane = g_.height * g_.width, stride = kPanel * row_ + 2 * kPanel;  // see point_
        int16_t* rows = scratch.get<int16_t>(kPoints * stride);
        memset(rows, 0, static_cast<size_t>(kPoints * stride) * sizeof(int16_t));
        for (int64_t c = 0; c < std::min(kPanel, g_.channels - panel * kPanel); c++) {
            const ChannelView channel{bytes_of(x_) + (panel * kPanel + c) * plane,
                                      g_.channels * plane,
                                      g_.height,
                                      g_.width,
                                      g_.pad_top,
                                      g_.pad_left,
                                      kSide,
                                      x_.lowest < 0};
            transform_rows(tiling_, channel, transforms_, transforms_.source, first, last, rows + c * row_,
                           stride);
        }
        for (int64_t i = 0; i < kPoints; i++) {
            gemm::interleave_rows(
                reinterpret_cast<const uint32_t*>(rows + i * stride), row_ / 2,
                reinterpret_cast<uint32_t*>(x_points_ + (i * panels_ + panel) * kPanel * row_));
        }
    }

    // The taps of a block, summed over these tiles, and added to those of the tiles before.
    void sum_block(int64_t block, int64_t tiles, bool is_first, int64_t* taps) const {
        thread_local Scratch scratch;
        int32_t* sums = scratch.get<int32_t>(kPoints * kPointSums);
        const int32_t zeros[kPanel] = {};
        const int64_t strip = block / blocks_ * kMaxOutputs, panel = block % blocks_ * kPanelsPerBlock;
        const int64_t outputs = std::min(kMaxOutputs, g_.outputs - strip);
        const int64_t count = std::min(kPanelsPerBlock, panels_ - panel);
        const int64_t pairs = (tiles + 1) / 2;
        for (int64_t pair = 0; pair < pairs; pair += pairs_together_) {
            const gemm::Segment segment{0, std::min(pairs_together_, pairs - pair), false};
            for (int64_t i = 0; i < kPoints; i++) {
                const int16_t* dy = dy_points_ + i * point_ + 2 * pair;
                for (int64_t k = 0; k < count; k++) {
                    const int16_t* x = x_points_ + ((i * panels_ + panel + k) * row_ + 2 * pair) * kPanel;
                    microkernel_({reinterpret_cast<const uint8_t*>(dy), row_offsets_ + strip, outputs,
                                  &segment, 1, reinterpret_cast<const uint8_t*>(x), 0, zeros,
                                  sums + i * kPointSums + k * kPanelSums});
                }
            }
            for (int64_t o = 0; o < outputs; o++) {
                for (int64_t k = 0; k < count; k++) {
                    transforms_.taps(sums + k * kPanelSums + o * kPanel, kPointSums, !is_first || pair,
                                     taps + (o * kPanelsPerBlock + k) * kPanelTaps);
                }
            }
        }
    }

    void store_block(int64_t block, const int64_t* taps, float* dw, int64_t* exact) const {
        const int64_t strip = block / blocks_ * kMaxOutputs,
                      first = block % blocks_ * kPanelsPerBlock * kPanel;
        const int64_t last = std::min(g_.channels, first + kPanelsPerBlock * kPanel);
        for (int64_t o = strip; o < std::min(g_.outputs, strip + kMaxOutputs); o++) {
            for (int64_t c = first; c < last; c++) {
                const int64_t number = (o - strip) * kPanelsPerBlock + (c - first) / kPanel;
                const int64_t* from = taps + number * kPanelTaps + c % kPanel;
                const int64_t at = (o * g_.channels + c) * kTaps;
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
    }

    static const uint8_t* bytes_of(const lowbit_operand& operand) {
        return static_cast<const uint8_t*>(operand.integers);
    }

    const lowbit_geometry& g_;
    const lowbit_operand &dy_, &x_;
    const int64_t out_h_, out_w_;
    const Transforms& transforms_;
    void (*const microkernel_)(const gemm::Strip& strip);
    const Tiling tiling_;
    const int64_t strips_, panels_;  // strips of outputs, panels of channels
    const int64_t blocks_;           // of panels, per strip
    const int64_t rows_;             // rows of tiles per pass
    const int64_t row_;              // int16 elements of these tiles, rounded up, and sixteen more
    const int64_t point_;  // int16 elements of a point of dy; not a power of two, so that points use
                           // different cache sets
    int16_t *dy_points_ = nullptr, *x_points_ = nullptr;
    int64_t* magnitudes_ = nullptr;  // of the outputs' gradients, of this pass
    int64_t pairs_together_ = 0;     // of tiles, whose taps are exact
    int64_t* taps_ = nullptr;        // [output][panel][tap][16 channels]
    int64_t* row_offsets_ = nullptr;
};

}  // namespace

void grad_weight(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums) {
    GradWeight(plan, dy, x).run(dw, sums);
}

}  // namespace lowbit::winograd
