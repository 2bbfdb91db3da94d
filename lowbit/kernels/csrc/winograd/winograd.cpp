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

int64_t max_magnitude(const lowbit_operand& operand) {
    return std::max<int64_t>(1, std::max(std::abs(operand.lowest), std::abs(operand.highest)));
}

namespace {

// Whether this is faster than the direct computation, which needs at least `pays` times as many
// multiplications. Sizes that kTile does not divide leave tiles partly empty, and with few channels the
// transforms take longer than they save.
bool saves_work(int64_t rows, int64_t columns, int64_t channels, int64_t few, double pays) {
    const Tiling tiling(1, rows, columns);
    const int64_t here = tiling.rows * tiling.columns * kPoints, direct = rows * columns * kTaps;
    return channels >= few && static_cast<double>(here) * pays < static_cast<double>(direct);
}

// What pays where the direct computation multiplies int16, too; and where AVX2 multiplies twice as many bytes
// at a time, because int16 holds some of their sums.
constexpr double kInt16Pays = 1.25, kBytesPay = 3.0, kBytesPayInGradWeight = 3.5;
constexpr int64_t kFewInt16 = 16, kFewBytes = 48;  // channels

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
    const gemm::PackedLayout direct(convolution, *product.source, *product.weight);
    const bool has_bytes = direct.microkernel.steps_in_int16 > 0;
    if (direct.packed == gemm::ElementType::int8 && !has_bytes &&
        instruction_set() != InstructionSet::baseline) {
        return false;
    }
    const gemm::Image &source = convolution.source, &result = convolution.result;
    const int64_t largest = kTaps * max_magnitude(*product.source) * max_magnitude(*product.weight);
    return source.channels * largest <= INT32_MAX &&
           saves_work(result.height, result.width, std::min(source.channels, result.channels),
                      has_bytes ? kFewBytes : kFewInt16, has_bytes ? kBytesPay : kInt16Pays);
}

bool applies(const wgrad::Plan& plan, const lowbit_operand& dy) {
    const lowbit_geometry& g = plan.g;
    if (g.groups != 1 || g.kernel_h != 3 || g.kernel_w != 3 || g.stride_h != 1 || g.stride_w != 1) {
        return false;
    }
    const bool has_bytes = plan.method == wgrad::Method::int8_acc16;
    if (g.dilation_h != 1 || g.dilation_w != 1 || plan.by_sample) return false;
    if (plan.method != wgrad::Method::int16 && !has_bytes) return false;
    // A point of a gradient sums up to 225 times its largest value, and has 16 bits. Any byte of x may be
    // transformed.
    return 225 * max_magnitude(dy) <= INT16_MAX &&
           saves_work(plan.out_h, plan.out_w, std::min(g.channels, g.outputs),
                      has_bytes ? kFewBytes : kFewInt16, has_bytes ? kBytesPayInGradWeight : kInt16Pays);
}

namespace {

using gemm::kSlack;

constexpr int64_t kMinTiles = 32, kMaxTiles = 128;  // of a block, whose points stay in the cache
constexpr int64_t kWords = 2 * kPanel;              // int16 elements of a step of a panel

// Rows of tiles per block: those that leave the smallest part of the last panel empty.
int64_t tile_rows_per_block(const Tiling& tiling) {
    // Every block reads all kernels, so that there are no more blocks than the threads need.
    const int64_t items = lowbit_threads() > 1 ? kItemsPerThread * lowbit_threads() : 1;
    const int64_t shared = std::max(round_up(tiling.rows, items) / items, kMinTiles / tiling.columns);
    int64_t best = 1;
    for (int64_t rows = 2; rows <= shared && rows * tiling.columns <= kMaxTiles; rows++) {
        const int64_t tiles = rows * tiling.columns, other = best * tiling.columns;
        if (tiles * round_up(other, kPanel) >= other * round_up(tiles, kPanel)) best = rows;
    }
    return best;
}

// Sums that are computed together, for some result channels and panels: few enough for the cache, and so many
// that kernels are read rarely.
struct Blocking {
    static constexpr int64_t outputs = 24, panels = 2;
    // Sums of a panel and of a point; no powers of two, so that the points of a tile use different cache
    // sets.
    static constexpr int64_t panel = (outputs + kSlack) * kPanel, point = panels * panel + kPanel;
};

// Consecutive tiles of a panel in one row of one image.
struct OutputRun {
    int64_t pixel, pixels;    // in the panel's rows of pixels
    int64_t image, position;  // in the result: image, and offset of the first pixel of the uppermost row
    int64_t rows;             // of pixels inside the image
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
          panel_((steps_ + 1) * kWords),
          kernel_row_(round_up(convolution.source.channels, kPanel)) {}

    void run() {
        if (tiling_.rows * tiling_.columns <= convolution_.result.channels) return run_by_outputs();
        thread_local Scratch scratch;
        const int64_t outputs = convolution_.result.channels, rows = tile_rows_per_block(tiling_);
        int16_t* points = scratch.get<int16_t>(kPoints * kernel_point(outputs));
        const Kernels kernels = transform_kernels(0, outputs, points, true);
        parallel_for(round_up(tiling_.rows, rows) / rows, [&](int64_t item) {
            const TileBlock block =
                transform_block(item * rows, std::min(tiling_.rows, (item + 1) * rows), false);
            for (int64_t o = 0; o < outputs; o += Blocking::outputs) run_block(block, kernels, o);
        });
    }

  private:
    // Transformed source, [point][panel][pair of channels][16 tiles][2].
    struct TileBlock {
        const int16_t* points;
        int64_t first, last;  // rows of tiles
        int64_t panels;
    };

    // Transformed kernels of some result channels, a matrix per point: rows are result channels, columns
    // source channels.
    struct Kernels {
        const int16_t* points;
        int64_t point;           // elements of a matrix
        int64_t first;           // result channel
        int64_t steps_together;  // whose results are exact
    };

    // With more kernels than tiles, kernels are transformed where they are used, and stay in the cache.
    void run_by_outputs() {
        const TileBlock block = transform_block(0, tiling_.rows, true);
        const int64_t outputs = convolution_.result.channels;
        parallel_for(round_up(outputs, Blocking::outputs) / Blocking::outputs, [&](int64_t item) {
            thread_local Scratch scratch;
            const int64_t first = item * Blocking::outputs,
                          last = std::min(outputs, first + Blocking::outputs);
            int16_t* points = scratch.get<int16_t>(kPoints * kernel_point(Blocking::outputs));
            run_block(block, transform_kernels(first, last, points, false), first);
        });
    }

    // Not a power of two, so that points use different cache sets.
    int64_t kernel_point(int64_t outputs) const { return outputs * kernel_row_ + 2 * kPanel; }

    Kernels transform_kernels(int64_t first, int64_t last, int16_t* points, bool in_parallel) const {
        thread_local Scratch magnitudes_scratch;
        int64_t* magnitudes = magnitudes_scratch.get<int64_t>(last - first);
        const int64_t point = kernel_point(last - first);
        const auto transform = [&](int64_t i) {
            thread_local Scratch taps_scratch;
            int16_t* taps = taps_scratch.get<int16_t>(kTaps * kernel_row_);
            load_taps(first + i, taps);
            magnitudes[i] = transforms_.kernel(taps, kernel_row_, points + i * kernel_row_, point);
        };
        if (in_parallel) {
            parallel_for(last - first, transform);
        } else {
            for (int64_t i = 0; i < last - first; i++) transform(i);
        }
        // A sum is at most the largest pixel times the sum of a kernel's magnitudes. Where that is too large,
        // fewer channels are summed at a time: as many as the largest of all weights would allow.
        const int64_t source = max_magnitude(*product_.source), weight = max_magnitude(*product_.weight);
        const bool fits = *std::max_element(magnitudes, magnitudes + last - first) * source <= kLargestSum;
        return {points, point, first,
                fits ? steps_ : std::max<int64_t>(1, kLargestSum / (2 * kTaps * source * weight))};
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

    // The results of a block of tiles, for the result channels from `o` that are computed together.
    void run_block(const TileBlock& block, const Kernels& kernels, int64_t o) const {
        thread_local Scratch sums_scratch, pixels_scratch;
        int32_t* sums = sums_scratch.get<int32_t>(kPoints * Blocking::point);
        int32_t* pixels = pixels_scratch.get<int32_t>(Blocking::panels * Blocking::outputs * kTile * kPixels);
        const int64_t outputs = std::min(Blocking::outputs, convolution_.result.channels - o);
        for (int64_t panel = 0; panel < block.panels; panel += Blocking::panels) {
            const int64_t count = std::min(Blocking::panels, block.panels - panel);
            for (int64_t step = 0; step < steps_; step += kernels.steps_together) {
                const int64_t steps = std::min(kernels.steps_together, steps_ - step);
                multiply(block, panel, count, kernels, o, outputs, step, steps, sums);
                for (int64_t i = 0; i < count; i++) {
                    OutputRun runs[kPanel];
                    const int64_t run_count = split_panel(block, panel + i, runs);
                    for (int64_t k = 0; k < outputs; k++) {
                        int32_t* to = pixels;
                        // Sums of parts are kept until the last part; others are stored from the cache.
                        if (kernels.steps_together < steps_) to += (i * outputs + k) * kTile * kPixels;
                        transforms_.pixels(sums + i * Blocking::panel + k * kPanel, Blocking::point, step > 0,
                                           to);
                        if (step + steps == steps_) store(to, o + k, runs, run_count);
                    }
                }
            }
        }
    }

    TileBlock transform_block(int64_t first, int64_t last, bool in_parallel) const {
        thread_local Scratch scratch;
        const int64_t panels = round_up((last - first) * tiling_.columns, kPanel) / kPanel;
        int16_t* points = scratch.get<int16_t>(kPoints * panels * panel_);
        const auto transform = [&](int64_t step) { transform_pair(step, first, last, panels, points); };
        if (in_parallel) {
            parallel_for(steps_, transform);
        } else {
            for (int64_t step = 0; step < steps_; step++) transform(step);
        }
        return {points, first, last, panels};
    }

    // The points of two channels.
    void transform_pair(int64_t step, int64_t first, int64_t last, int64_t panels, int16_t* points) const {
        thread_local Scratch scratch;
        const int64_t channels = convolution_.source.channels, stride = (panels + 1) * kPanel;
        const int64_t plane = convolution_.source.height * convolution_.source.width;
        int16_t* flat = scratch.get<int16_t>(2 * kPoints * stride);
        for (int64_t c = 2 * step; c < 2 * step + 2; c++) {
            int16_t* to = flat + c % 2 * kPoints * stride;
            if (c < channels) {
                const ChannelView channel{static_cast<const uint8_t*>(product_.source->integers) + c * plane,
                                          channels * plane,
                                          convolution_.source.height,
                                          convolution_.source.width,
                                          convolution_.pad_top,
                                          convolution_.pad_left,
                                          kSide,
                                          product_.source->lowest < 0};
                transform_rows(tiling_, channel, transforms_, transforms_.source, first, last, to, stride);
            } else {
                memset(to, 0, static_cast<size_t>(kPoints * stride) * sizeof(int16_t));
            }
        }
        for (int64_t i = 0; i < kPoints; i++) {
            transforms_.interleave(flat + i * stride, flat + (kPoints + i) * stride, panels,
                                   points + i * panels * panel_ + step * kWords, panel_);
        }
    }

    // sums[point][panel][output][16 tiles] of some panels of a block, over some pairs of channels.
    void multiply(const TileBlock& block, int64_t panel, int64_t count, const Kernels& kernels, int64_t o,
                  int64_t outputs, int64_t step, int64_t steps, int32_t* sums) const {
        const int32_t zeros[kPanel] = {};
        const gemm::Segment segment{0, steps, false};
        int64_t rows[Blocking::outputs + kSlack];
        for (int64_t i = 0; i < Blocking::outputs + kSlack; i++) {
            rows[i] = (o - kernels.first + std::min(i, outputs - 1)) * kernel_row_ * int64_t(sizeof(int16_t));
        }
        for (int64_t i = 0; i < kPoints; i++) {
            const int16_t* matrix = kernels.points + i * kernels.point + 2 * step;
            for (int64_t k = 0; k < count; k++) {
                const int16_t* tiles = block.points + (i * block.panels + panel + k) * panel_ + step * kWords;
                microkernel_({reinterpret_cast<const uint8_t*>(matrix), rows, outputs, &segment, 1,
                              reinterpret_cast<const uint8_t*>(tiles), 0, zeros,
                              sums + i * Blocking::point + k * Blocking::panel});
            }
        }
    }

    // Where the pixels of a panel belong in the result.
    int64_t split_panel(const TileBlock& block, int64_t panel, OutputRun* runs) const {
        const gemm::Image& image = convolution_.result;
        int64_t count = 0, tile = panel * kPanel;
        const int64_t end = std::min(tile + kPanel, (block.last - block.first) * tiling_.columns);
        while (tile < end) {
            const int64_t row = block.first + tile / tiling_.columns, column = tile % tiling_.columns;
            const int64_t tiles = std::min(end - tile, tiling_.columns - column);
            const int64_t top = row % tiling_.tile_rows * kTile;
            runs[count++] = {kTile * (tile - panel * kPanel),
                             std::min(kTile * tiles, image.width - kTile * column), row / tiling_.tile_rows,
                             top * image.width + kTile * column, std::min(kTile, image.height - top)};
            tile += tiles;
        }
        return count;
    }

    // The sums of a panel's pixels of result channel `o`, to the result.
    void store(const int32_t* pixels, int64_t o, const OutputRun* runs, int64_t count) const {
        const gemm::Image& image = convolution_.result;
        const lowbit_operand &source = *product_.source, &weight = *product_.weight;
        for (const OutputRun* run = runs; run < runs + count; run++) {
            const int64_t at = (run->image * image.channels + o) * image.height * image.width + run->position;
            for (int64_t row = 0; row < run->rows; row++) {
                const int32_t* from = pixels + row * kPixels + run->pixel;
                const int64_t to = at + row * image.width;
                if (product_.sums) {
                    std::copy_n(from, run->pixels, product_.sums + to);
                } else {
                    const float scale =
                        source.scale[run->image * source.of_n] * weight.scale[o * product_.scale_of_channel];
                    transforms_.values(from, run->pixels, scale, product_.bias ? product_.bias + o : nullptr,
                                       product_.values + to);
                }
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
    const int64_t kernel_row_;  // int16 elements of a row of the kernels' matrices
};

}  // namespace

void run(const gemm::Convolution& convolution, const gemm::Product& product) {
    WinogradConv(convolution, product).run();
}

}  // namespace lowbit::winograd
