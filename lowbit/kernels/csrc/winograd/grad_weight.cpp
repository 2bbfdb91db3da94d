// grad_weight with Winograd: for some rows of tiles at a time, both operands are transformed and multiplied
// point by point; the sums over all tiles are transformed to the nine taps.
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

constexpr int64_t kMaxOutputs = 48;  // computed together
constexpr int64_t kTilesPerPass =
    384;  // large, since all sums are read and written per pass; small, since all points are
constexpr int64_t kBlockSums =
    kMaxOutputs * kPanel;  // sums of a point, for a strip of outputs and a panel of channels

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
          rows_(std::max<int64_t>(1, kTilesPerPass / tiling_.columns)),
          row_(round_up(rows_ * tiling_.columns, kPanel) + kPanel),
          point_(g_.outputs * row_ + 3 * kPanel) {}

    // `most`: tiles whose sums int32 holds.
    void run(int64_t most, float* dw, int64_t* exact) {
        thread_local Scratch wide_scratch;
        const bool is_wide = tiling_.rows * tiling_.columns > most;
        const int64_t weights = g_.outputs * g_.channels * kTaps;
        int64_t* wide = exact ? exact : is_wide ? wide_scratch.get<int64_t>(weights) : nullptr;
        if (wide) memset(wide, 0, static_cast<size_t>(weights) * sizeof(int64_t));
        allocate();
        int64_t summed = 0;
        for (int64_t first = 0; first < tiling_.rows; first += rows_) {
            const int64_t last = std::min(tiling_.rows, first + rows_),
                          tiles = (last - first) * tiling_.columns;
            const int64_t next = std::min(rows_, tiling_.rows - last) * tiling_.columns;
            const bool is_full = summed + tiles + next > most || last == tiling_.rows;
            transform(first, last);
            parallel_for(strips_ * panels_, [&](int64_t block) {
                multiply(block, tiles, summed > 0);
                if (is_full) flush(block, last == tiling_.rows, wide, exact ? nullptr : dw);
            });
            summed = is_full ? 0 : summed + tiles;
        }
    }

  private:
    void allocate() {
        thread_local Scratch dy_scratch, x_scratch, sums_scratch, offsets_scratch;
        dy_points_ = dy_scratch.get<int16_t>(kPoints * point_);
        x_points_ = x_scratch.get<int16_t>(kPoints * panels_ * kPanel * row_);
        sums_ = sums_scratch.get<int32_t>(strips_ * panels_ * kPoints * kBlockSums);
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
            const ChannelView channel{bytes_of(dy_) + o * plane, g_.outputs * plane, out_h_, out_w_, 0, 0, 2};
            int16_t* points = dy_points_ + o * row_;
            transform_rows(tiling_, channel, transforms_.gradient[dy_.lowest < 0], first, last, points,
                           point_);
            // The transform writes sixteen tiles at a time: tiles beyond the last must add nothing.
            for (int64_t i = 0; i < kPoints; i++) {
                std::fill(points + i * point_ + tiles, points + i * point_ + row_, 0);
            }
        });
        parallel_for(panels_, [&](int64_t panel) { transform_panel(first, last, panel); });
    }

    void transform_panel(int64_t first, int64_t last, int64_t panel) {
        thread_local Scratch scratch;
        const int64_t plane = g_.height * g_.width, stride = kPanel * row_;
        int16_t* rows = scratch.get<int16_t>(kPoints * stride);
        memset(rows, 0, static_cast<size_t>(kPoints * stride) * sizeof(int16_t));
        for (int64_t c = 0; c < std::min(kPanel, g_.channels - panel * kPanel); c++) {
            const ChannelView channel{bytes_of(x_) + (panel * kPanel + c) * plane,
                                      g_.channels * plane,
                                      g_.height,
                                      g_.width,
                                      g_.pad_top,
                                      g_.pad_left,
                                      4};
            transform_rows(tiling_, channel, transforms_.source[x_.lowest < 0], first, last, rows + c * row_,
                           stride);
        }
        for (int64_t i = 0; i < kPoints; i++) {
            gemm::interleave_rows(reinterpret_cast<const uint32_t*>(rows + i * stride), row_ / 2,
                                  reinterpret_cast<uint32_t*>(x_points_ + (i * panels_ + panel) * stride));
        }
    }

    // A block's sums over these tiles, added to the previous ones.
    void multiply(int64_t block, int64_t tiles, bool add) const {
        const int32_t zeros[kPanel] = {};
        int32_t sums[gemm::kPanelSums];
        const gemm::Segment segment{0, (tiles + 1) / 2, false};
        const int64_t strip = block / panels_ * kMaxOutputs, panel = block % panels_;
        const int64_t outputs = std::min(kMaxOutputs, g_.outputs - strip);
        for (int64_t i = 0; i < kPoints; i++) {
            microkernel_({reinterpret_cast<const uint8_t*>(dy_points_ + i * point_), row_offsets_ + strip,
                          outputs, &segment, 1,
                          reinterpret_cast<const uint8_t*>(x_points_ + (i * panels_ + panel) * kPanel * row_),
                          0, zeros, sums});
            int32_t* to = sums_ + (block * kPoints + i) * kBlockSums;
            for (int64_t k = 0; k < outputs * kPanel; k++) to[k] = add ? to[k] + sums[k] : sums[k];
        }
    }

    // Transforms the sums of a block to taps, adds them to `wide` if given, and at the end scales them to dw
    // if wanted.
    void flush(int64_t block, bool is_last, int64_t* wide, float* dw) const {
        const int64_t strip = block / panels_ * kMaxOutputs, first = block % panels_ * kPanel;
        const int64_t outputs = std::min(kMaxOutputs, g_.outputs - strip),
                      channels = std::min(kPanel, g_.channels - first);
        for (int64_t o = strip; o < strip + outputs; o++) {
            int32_t taps[kTaps * kPanel];
            transforms_.taps(sums_ + block * kPoints * kBlockSums + (o - strip) * kPanel, kBlockSums, taps);
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
    const Transforms& transforms_;
    void (*const microkernel_)(const gemm::Strip& strip);
    const Tiling tiling_;
    const int64_t strips_, panels_;  // strips of outputs, panels of channels
    const int64_t rows_;             // rows of tiles per pass
    const int64_t row_;              // int16 elements of these tiles, rounded up, and sixteen more
    const int64_t point_;  // int16 elements of a point of dy; not a power of two, so that points use
                           // different cache sets
    int16_t *dy_points_ = nullptr, *x_points_ = nullptr;
    int32_t* sums_ = nullptr;  // [strip][panel][point][48 outputs][16 channels]
    int64_t* row_offsets_ = nullptr;
};

}  // namespace

void grad_weight(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums) {
    GradWeight(plan, dy, x).run(tiles_in_int32(dy, x), dw, sums);
}

}  // namespace lowbit::winograd
