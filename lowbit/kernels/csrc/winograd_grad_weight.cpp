// grad_weight by Winograd's transforms: the points of both operands of some rows of tiles, then, for every point, the
// product of dy's with x's; the sums over all tiles become the nine taps.
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

constexpr int64_t kMostOutputs = 48;    // outputs that are worked out together
constexpr int64_t kTilesAtATime = 384;  // many, since all sums pass by; few, since all points do
constexpr int64_t kBlockOfSums = kMostOutputs * kPanel;  // of a point, of a strip of outputs and a panel of channels

class GradWeight {
  public:
    GradWeight(const weight::WeightPlan& plan, const lowbit_operand& dy, const lowbit_operand& x)
        : g_(plan.g),
          dy_(dy),
          x_(x),
          out_h_(plan.out_h),
          out_w_(plan.out_w),
          loops_(loops_of(instruction_set())),
          run_(conv::words_tiles().run),
          tiling_(g_.batch, out_h_, out_w_),
          strips_(up_to(g_.outputs, kMostOutputs) / kMostOutputs),
          panels_(up_to(g_.channels, kPanel) / kPanel),
          rows_(std::max<int64_t>(1, kTilesAtATime / tiling_.columns)),
          row_(up_to(rows_ * tiling_.columns, kPanel) + kPanel),
          point_(g_.outputs * row_ + 3 * kPanel) {}

    // `most`: tiles whose sums stay in int32.
    void run(int64_t most, float* dw, int64_t* exact) {
        thread_local Room wide_room;
        const bool is_wide = tiling_.rows * tiling_.columns > most;
        const int64_t weights = g_.outputs * g_.channels * kTaps;
        int64_t* wide = exact ? exact : is_wide ? wide_room.of<int64_t>(weights) : nullptr;
        if (wide) memset(wide, 0, static_cast<size_t>(weights) * sizeof(int64_t));
        make_room();
        int64_t summed = 0;
        for (int64_t first = 0; first < tiling_.rows; first += rows_) {
            const int64_t last = std::min(tiling_.rows, first + rows_), tiles = (last - first) * tiling_.columns;
            const int64_t next = std::min(rows_, tiling_.rows - last) * tiling_.columns;
            const bool is_full = summed + tiles + next > most || last == tiling_.rows;
            spread(first, last);
            parallel_for(strips_ * panels_, [&](int64_t block) {
                multiply(block, tiles, summed > 0);
                if (is_full) empty(block, last == tiling_.rows, wide, exact ? nullptr : dw);
            });
            summed = is_full ? 0 : summed + tiles;
        }
    }

  private:
    void make_room() {
        thread_local Room dy_room, x_room, sums_room, places_room;
        dy_points_ = dy_room.of<int16_t>(kPoints * point_);
        x_points_ = x_room.of<int16_t>(kPoints * panels_ * kPanel * row_);
        sums_ = sums_room.of<int32_t>(strips_ * panels_ * kPoints * kBlockOfSums);
        places_ = places_room.of<int64_t>(g_.outputs + kSlack);
        for (int64_t o = 0; o < g_.outputs + kSlack; o++) {
            places_[o] = std::min(o, g_.outputs - 1) * row_ * int64_t(sizeof(int16_t));
        }
    }

    // The points of rows of tiles: dy's as [point][output][tile], x's as [point][panel][pair of tiles][16 channels][2].
    void spread(int64_t first, int64_t last) {
        const int64_t tiles = (last - first) * tiling_.columns;
        parallel_for(g_.outputs, [&](int64_t o) {
            const int64_t plane = out_h_ * out_w_;
            const Channel channel{bytes_of(dy_) + o * plane, g_.outputs * plane, out_h_, out_w_, 0, 0, 2};
            int16_t* points = dy_points_ + o * row_;
            spread_rows(tiling_, channel, loops_.gradient[dy_.lowest < 0], first, last, points, point_);
            // What stands over was written by the last sixteen, and must add nothing.
            for (int64_t i = 0; i < kPoints; i++) std::fill(points + i * point_ + tiles, points + i * point_ + row_, 0);
        });
        parallel_for(panels_, [&](int64_t panel) { spread_panel(first, last, panel); });
    }

    void spread_panel(int64_t first, int64_t last, int64_t panel) {
        thread_local Room room;
        const int64_t plane = g_.height * g_.width, apart = kPanel * row_;
        int16_t* rows = room.of<int16_t>(kPoints * apart);
        memset(rows, 0, static_cast<size_t>(kPoints * apart) * sizeof(int16_t));
        for (int64_t c = 0; c < std::min(kPanel, g_.channels - panel * kPanel); c++) {
            const Channel channel{bytes_of(x_) + (panel * kPanel + c) * plane, g_.channels * plane, g_.height, g_.width,
                                  g_.pad_top, g_.pad_left, 4};
            spread_rows(tiling_, channel, loops_.source[x_.lowest < 0], first, last, rows + c * row_, apart);
        }
        for (int64_t i = 0; i < kPoints; i++) {
            conv::interleave_rows(reinterpret_cast<const uint32_t*>(rows + i * apart), row_ / 2,
                                  reinterpret_cast<uint32_t*>(x_points_ + (i * panels_ + panel) * apart));
        }
    }

    // The sums of a block over these tiles, added to those before.
    void multiply(int64_t block, int64_t tiles, bool add) const {
        const int32_t zeros[kPanel] = {};
        int32_t sums[conv::kPanelOfSums];
        const conv::Segment segment{0, (tiles + 1) / 2, false};
        const int64_t strip = block / panels_ * kMostOutputs, panel = block % panels_;
        const int64_t outputs = std::min(kMostOutputs, g_.outputs - strip);
        for (int64_t i = 0; i < kPoints; i++) {
            run_({reinterpret_cast<const uint8_t*>(dy_points_ + i * point_), places_ + strip, outputs,
                  &segment, 1, reinterpret_cast<const uint8_t*>(x_points_ + (i * panels_ + panel) * kPanel * row_), 0,
                  zeros, sums});
            int32_t* to = sums_ + (block * kPoints + i) * kBlockOfSums;
            for (int64_t k = 0; k < outputs * kPanel; k++) to[k] = add ? to[k] + sums[k] : sums[k];
        }
    }

    // A block's sums to where they belong: to the wide ones, if there are any, and at the end to dw, if it is wanted.
    void empty(int64_t block, bool is_last, int64_t* wide, float* dw) const {
        const int64_t strip = block / panels_ * kMostOutputs, first = block % panels_ * kPanel;
        const int64_t outputs = std::min(kMostOutputs, g_.outputs - strip), channels = std::min(kPanel, g_.channels - first);
        for (int64_t o = strip; o < strip + outputs; o++) {
            int32_t taps[kTaps * kPanel];
            loops_.taps(sums_ + block * kPoints * kBlockOfSums + (o - strip) * kPanel, kBlockOfSums, taps);
            for (int64_t c = 0; c < channels; c++) {
                const int64_t at = (o * g_.channels + first + c) * kTaps;
                for (int64_t k = 0; wide && k < kTaps; k++) wide[at + k] += taps[k * kPanel + c];
                if (!is_last || !dw) continue;
                const float scale = dy_.scale[o * dy_.of_c] * x_.scale[(first + c) * x_.of_c];
                for (int64_t k = 0; k < kTaps; k++) {
                    const int64_t sum = wide ? wide[at + k] : taps[k * kPanel + c];
                    dw[at + k] = static_cast<float>(sum) * scale;
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
    const Loops& loops_;
    void (*const run_)(const conv::Strip& strip);
    const Tiling tiling_;
    const int64_t strips_, panels_;  // of outputs, and of channels
    const int64_t rows_;             // of tiles, at a time
    const int64_t row_;              // int16 of these tiles, with room for sixteen that stand over
    const int64_t point_;            // of dy's; no power of two, lest points share the same few lines of the cache
    int16_t *dy_points_ = nullptr, *x_points_ = nullptr;
    int32_t* sums_ = nullptr;  // [strip][panel][point][48 outputs][16 channels]
    int64_t* places_ = nullptr;
};

}  // namespace

void grad_weight(const weight::WeightPlan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums) {
    GradWeight(plan, dy, x).run(tiles_in_int32(dy, x), dw, sums);
}

}  // namespace lowbit::winograd
