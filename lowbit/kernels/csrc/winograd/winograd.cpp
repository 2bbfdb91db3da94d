// When Winograd applies, and forward and grad_input with it: blocks of tiles are transformed and multiplied
// with the transformed kernels while they are in the cache.
#include "winograd/winograd.h"

#include "common/scratch.h"
#include "common/threads.h"
#include "gemm/packing.h"
#include "winograd/transforms.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace lowbit::winograd {
namespace {

constexpr int64_t kFewChannels = 16;  // with fewer, the transforms take longer than they save

int64_t max_magnitude(const lowbit_operand& operand) {
    return std::max<int64_t>(1, std::max(std::abs(operand.lowest), std::abs(operand.highest)));
}

// Odd sizes leave tiles partly empty: multiplications must still be clearly fewer.
bool saves_work(int64_t rows, int64_t columns) {
    const Tiling tiling(1, rows, columns);
    return tiling.rows * tiling.columns * kPoints * 5 < rows * columns * kTaps * 4;
}

bool is_plain_3x3(const gemm::Convolution& convolution) {
    if (convolution.groups != 1 || convolution.phases.size() != 1 || convolution.kernel_taps != kTaps) {
        return false;
    }
    const gemm::Phase& phase = convolution.phases[0];
    if (phase.in_stride_h != 1 || phase.in_stride_w != 1 || phase.out_stride_h != 1 ||
        phase.out_stride_w != 1) {
        return false;
    }
    for (const gemm::Tap& tap : phase.taps) {
        const int64_t row = tap.row + convolution.pad_top, column = tap.column + convolution.pad_left;
        if (row < 0 || row > 2 || column < 0 || column > 2) return false;
    }
    return true;
}

}  // namespace

bool applies(const gemm::Convolution& convolution, const gemm::Product& product) {
    if (product.sum_taps_in_fp32 || !is_plain_3x3(convolution)) return false;
    const int64_t source = max_magnitude(*product.source), weight = max_magnitude(*product.weight);
    const gemm::PackedLayout direct(convolution, *product.source, *product.weight);
    if (direct.packed == gemm::ElementType::int8 && instruction_set() != InstructionSet::baseline) {
        return false;
    }
    const int64_t channels = convolution.source.channels;
    if (std::min(channels, convolution.result.channels) < kFewChannels) return false;
    // A point sums up to four pixels of the source and nine taps of the kernel; the result adds two sums of
    // products.
    return 2 * channels * 4 * source * kTaps * weight <= INT32_MAX &&
           saves_work(convolution.result.height, convolution.result.width);
}

int64_t tiles_in_int32(const lowbit_operand& dy, const lowbit_operand& x) {
    // A point sums up to four pixels of either operand; the result adds two sums of products.
    return INT32_MAX / (2 * 4 * max_magnitude(dy) * 4 * max_magnitude(x));
}

bool applies(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x) {
    const lowbit_geometry& g = plan.g;
    if (g.groups != 1 || g.kernel_h != 3 || g.kernel_w != 3 || g.stride_h != 1 || g.stride_w != 1) {
        return false;
    }
    if (g.dilation_h != 1 || g.dilation_w != 1 || std::min(g.channels, g.outputs) < kFewChannels) {
        return false;
    }
    if (plan.by_sample || plan.method != wgrad::Method::int16) return false;
    return Tiling(1, plan.out_h, plan.out_w).columns <= tiles_in_int32(dy, x) &&
           saves_work(plan.out_h, plan.out_w);
}

namespace {

using gemm::kSlack;

constexpr int64_t kMaxOutputs = 48;      // result channels that are computed together
constexpr int64_t kMaxTiles = 128;       // of a block, whose points stay in the cache
constexpr int64_t kPixels = 2 * kPanel;  // of a row of a panel

// Rows of tiles per block: those that leave the smallest part of the last panel empty.
int64_t tile_rows_per_block(const Tiling& tiling) {
    const int64_t items = kItemsPerThread * lowbit_threads(), shared = round_up(tiling.rows, items) / items;
    int64_t best = 1;
    for (int64_t rows = 2; rows <= shared && rows * tiling.columns <= kMaxTiles; rows++) {
        const int64_t tiles = rows * tiling.columns, other = best * tiling.columns;
        if (tiles * round_up(other, kPanel) >= other * round_up(tiles, kPanel)) best = rows;
    }
    return best;
}

// Result channels and panels that are computed together: few channels for short sums, so that sums stay in
// the L1 cache; many for long ones, so that the large kernels are read rarely.
struct Blocking {
    explicit Blocking(int64_t steps) : outputs(steps <= 64 ? 12 : kMaxOutputs), panels(steps <= 64 ? 1 : 2) {}

    int64_t panel() const { return (outputs + kSlack) * kPanel; }  // of sums
    int64_t point() const { return panels * panel(); }

    int64_t outputs, panels;
};

// Consecutive tiles of a panel in one row of one image.
struct OutputRun {
    int64_t pixel, pixels;    // in the panel's row of pixels
    int64_t image, position;  // in the result: image, and offset of the first upper pixel in its plane
    bool is_last_row;         // the lower row is outside of the image
};

class WinogradConv {
  public:
    WinogradConv(const gemm::Convolution& convolution, const gemm::Product& product)
        : convolution_(convolution),
          product_(product),
          transforms_(transforms_for(instruction_set())),
          microkernel_(gemm::int16_microkernel().run),
          tiling_(convolution.batch, convolution.result.height, convolution.result.width),
          steps_(round_up(convolution.source.channels, 2) / 2),
          panel_((steps_ + 1) * kPixels),
          blocking_(steps_),
          kernel_row_(round_up(convolution.source.channels, kPanel)) {}

    void run() {
        transform_kernels();
        const int64_t rows = tile_rows_per_block(tiling_);
        parallel_for(round_up(tiling_.rows, rows) / rows, [&](int64_t item) {
            run_block(item * rows, std::min(tiling_.rows, (item + 1) * rows));
        });
    }

  private:
    // A matrix per point: rows are result channels, columns source channels.
    void transform_kernels() {
        thread_local Scratch scratch, offsets_scratch;
        const int64_t outputs = convolution_.result.channels, stride = outputs * kernel_row_;
        int16_t* points = scratch.get<int16_t>(kPoints * stride);
        int64_t* offsets = offsets_scratch.get<int64_t>(outputs + kSlack);
        for (int64_t o = 0; o < outputs + kSlack; o++) {
            offsets[o] = std::min(o, outputs - 1) * kernel_row_ * int64_t(sizeof(int16_t));
        }
        kernels_ = points;
        row_offsets_ = offsets;
        parallel_for(outputs, [&](int64_t o) {
            thread_local Scratch taps_scratch;
            int16_t* taps = taps_scratch.get<int16_t>(kTaps * kernel_row_);
            load_taps(o, taps);
            transforms_.kernel(taps, kernel_row_, points + o * kernel_row_, stride);
        });
    }

    // taps[k * kernel_row_ + c] of a result channel, k being the position in the source; 0 for padding
    // channels.
    void load_taps(int64_t o, int16_t* taps) const {
        const int64_t in = convolution_.source.channels, out = convolution_.result.channels;
        const uint8_t* all = static_cast<const uint8_t*>(product_.weight->integers);
        const uint8_t* first = all + (product_.transposed ? o : o * in) * kTaps;
        int64_t offsets[kTaps];
        for (const gemm::Tap& tap : convolution_.phases[0].taps) {
            const int64_t row = tap.row + convolution_.pad_top, column = tap.column + convolution_.pad_left;
            offsets[tap.index] = (3 * row + column) * kernel_row_;
        }
        memset(taps, 0, static_cast<size_t>(kTaps * kernel_row_) * sizeof(int16_t));
        gemm::pack_planes({first, all + in * out * kTaps, product_.weight->lowest < 0}, in,
                          (product_.transposed ? out : 1) * kTaps, kTaps, offsets, 0,
                          gemm::ElementType::int16, taps);
    }

    void run_block(int64_t first, int64_t last) const {
        thread_local Scratch sums_scratch;
        const int64_t panels = round_up((last - first) * tiling_.columns, kPanel) / kPanel;
        const int16_t* points = transform_block(first, last, panels);
        int32_t* sums = sums_scratch.get<int32_t>(kPoints * blocking_.point());
        for (int64_t o = 0; o < convolution_.result.channels; o += blocking_.outputs) {
            const int64_t outputs = std::min(blocking_.outputs, convolution_.result.channels - o);
            for (int64_t panel = 0; panel < panels; panel += blocking_.panels) {
                const int64_t count = std::min(blocking_.panels, panels - panel);
                multiply(points + panel * panel_, panels, o, outputs, count, sums);
                for (int64_t i = 0; i < count; i++) {
                    OutputRun runs[kPanel];
                    const int64_t run_count = split_panel(first, last, panel + i, runs);
                    store_panel(sums + i * blocking_.panel(), o, outputs, runs, run_count);
                }
            }
        }
    }

    // The points of a block, [point][panel][pair of channels][16 tiles][2].
    const int16_t* transform_block(int64_t first, int64_t last, int64_t panels) const {
        thread_local Scratch scratch, flat_scratch;
        const int64_t channels = convolution_.source.channels, stride = (panels + 1) * kPanel;
        const int64_t plane = convolution_.source.height * convolution_.source.width;
        int16_t* points = scratch.get<int16_t>(kPoints * panels * panel_);
        int16_t* flat = flat_scratch.get<int16_t>(2 * kPoints * stride);
        memset(flat, 0, static_cast<size_t>(2 * kPoints * stride) * sizeof(int16_t));
        const bool is_signed = product_.source->lowest < 0;
        for (int64_t c = 0; c < 2 * steps_; c++) {
            int16_t* to = flat + c % 2 * kPoints * stride;
            if (c < channels) {
                const ChannelView channel{static_cast<const uint8_t*>(product_.source->integers) + c * plane,
                                          channels * plane,
                                          convolution_.source.height,
                                          convolution_.source.width,
                                          convolution_.pad_top,
                                          convolution_.pad_left,
                                          4};
                transform_rows(tiling_, channel, transforms_.source[is_signed], first, last, to, stride);
            } else {
                memset(to, 0, static_cast<size_t>(kPoints * stride) * sizeof(int16_t));
            }
            for (int64_t i = 0; c % 2 && i < kPoints; i++) {
                transforms_.interleave(flat + i * stride, to + i * stride, panels,
                                       points + i * panels * panel_ + c / 2 * kPixels, panel_);
            }
        }
        return points;
    }

    // sums[point][panel][output][16 tiles] of some panels of a block.
    void multiply(const int16_t* points, int64_t panels, int64_t o, int64_t outputs, int64_t count,
                  int32_t* sums) const {
        const int32_t zeros[kPanel] = {};
        const gemm::Segment segment{0, steps_, false};
        const int64_t stride = convolution_.result.channels * kernel_row_;
        for (int64_t i = 0; i < kPoints; i++) {
            for (int64_t panel = 0; panel < count; panel++) {
                const int16_t* tiles = points + (i * panels + panel) * panel_;
                microkernel_({reinterpret_cast<const uint8_t*>(kernels_ + i * stride), row_offsets_ + o,
                              outputs, &segment, 1, reinterpret_cast<const uint8_t*>(tiles), 0, zeros,
                              sums + i * blocking_.point() + panel * blocking_.panel()});
            }
        }
    }

    // Where the pixels of a panel belong in the result.
    int64_t split_panel(int64_t first, int64_t last, int64_t panel, OutputRun* runs) const {
        int64_t count = 0, tile = panel * kPanel;
        const int64_t end = std::min(tile + kPanel, (last - first) * tiling_.columns);
        while (tile < end) {
            const int64_t row = first + tile / tiling_.columns, column = tile % tiling_.columns;
            const int64_t tiles = std::min(end - tile, tiling_.columns - column);
            const int64_t top = row % tiling_.tile_rows * 2;
            runs[count++] = {2 * (tile - panel * kPanel),
                             std::min(2 * tiles, convolution_.result.width - 2 * column),
                             row / tiling_.tile_rows, top * convolution_.result.width + 2 * column,
                             top + 1 == convolution_.result.height};
            tile += tiles;
        }
        return count;
    }

    // All values are computed before any is copied: loads of what was just stored in other widths are slow.
    void store_panel(const int32_t* sums, int64_t o, int64_t outputs, const OutputRun* runs,
                     int64_t count) const {
        const lowbit_operand &source = *product_.source, &weight = *product_.weight;
        if (product_.sums) {
            int64_t exact[kMaxOutputs][2 * kPixels];
            for (int64_t i = 0; i < outputs; i++) {
                transforms_.sums(sums + i * kPanel, blocking_.point(), exact[i]);
            }
            return copy_runs(exact, o, outputs, runs, count, product_.sums);
        }
        float values[kMaxOutputs][2 * kPixels], scales[kPanel] = {};
        for (int64_t i = 0; i < count; i++) {
            float* first = scales + runs[i].pixel / 2;
            std::fill_n(first, (runs[i].pixels + 1) / 2, source.scale[runs[i].image * source.of_n]);
        }
        for (int64_t i = 0; i < outputs; i++) {
            transforms_.values(sums + i * kPanel, blocking_.point(), scales,
                               weight.scale[(o + i) * product_.scale_of_channel],
                               product_.bias ? product_.bias + o + i : nullptr, values[i]);
        }
        copy_runs(values, o, outputs, runs, count, product_.values);
    }

    template <class Number>
    void copy_runs(const Number (*pixels)[2 * kPixels], int64_t o, int64_t outputs, const OutputRun* runs,
                   int64_t count, Number* result) const {
        const gemm::Image& image = convolution_.result;
        const int64_t plane = image.height * image.width;
        for (int64_t i = 0; i < outputs; i++) {
            for (const OutputRun* run = runs; run < runs + count; run++) {
                Number* to = result + (run->image * image.channels + o + i) * plane + run->position;
                const Number* from = pixels[i] + run->pixel;
                std::copy_n(from, run->pixels, to);
                if (!run->is_last_row) std::copy_n(from + kPixels, run->pixels, to + image.width);
            }
        }
    }

    const gemm::Convolution& convolution_;
    const gemm::Product& product_;
    const Transforms& transforms_;
    void (*const microkernel_)(const gemm::Strip& strip);
    const Tiling tiling_;
    const int64_t steps_;  // pairs of source channels
    const int64_t panel_;  // int16 elements of a panel; a step extra, so that panels use other cache sets
    const Blocking blocking_;
    const int64_t kernel_row_;  // int16 elements of a row of the kernels' matrices
    const int16_t* kernels_ = nullptr;
    const int64_t* row_offsets_ = nullptr;
};

}  // namespace

void run(const gemm::Convolution& convolution, const gemm::Product& product) {
    WinogradConv(convolution, product).run();
}

}  // namespace lowbit::winograd
