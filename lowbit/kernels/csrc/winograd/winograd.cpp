// When Winograd applies, and forward and grad_input with it: blocks of tiles are transformed and multiplied
// with the transformed kernels while they are in the cache.
#include "winograd/winograd.h"

#include "common/scratch.h"
#include "common/threads.h"
#include "gemm/packing.h"
#include "winograd/products.h"
#include "winograd/transforms.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace lowbit::winograd {

int64_t max_magnitude(const lowbit_operand& operand) {
    return std::max<int64_t>(1, std::max(std::abs(operand.lowest), std::abs(operand.highest)));
}

namespace {

// How many times as many multiplications the direct computation must need for this to be faster: fewer, the
// more channels share the transforms. Measured with 16 to 128 channels.
struct Pays {
    double least, by_channel;
};

// Where the direct computation multiplies int16, too; and where AVX2 multiplies twice as many bytes at a
// time, because int16 holds some of their sums.
constexpr Pays kInt16Pays{1.25, 0}, kBytesPay{2.3, 26}, kBytesPayInGradWeight{2.2, 16};
constexpr int64_t kFewChannels = 16;

// Sizes that kTile does not divide leave tiles partly empty.
bool saves_work(int64_t rows, int64_t columns, int64_t channels, const Pays& pays) {
    const Tiling tiling(1, rows, columns);
    const int64_t here = tiling.rows * tiling.columns * kPoints, direct = rows * columns * kTaps;
    const double least = pays.least + pays.by_channel / static_cast<double>(channels);
    return channels >= kFewChannels && static_cast<double>(here) * least < static_cast<double>(direct);
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
                      has_bytes ? kBytesPay : kInt16Pays);
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
                      has_bytes ? kBytesPayInGradWeight : kInt16Pays);
}

namespace {

constexpr int64_t kMinTiles = 24, kMaxTiles = 96;  // of a block, whose points stay in the cache
constexpr int64_t kRows = 6;                       // tiles that are multiplied together
constexpr int64_t kStep = 2 * kPanel;              // int16 elements of a step of a panel of kernels
constexpr int64_t kPanelsTogether = 2;             // of result channels, whose sums stay in the cache

// Rows of tiles per block: the most tiles per group that is multiplied together.
int64_t tile_rows_per_block(const Tiling& tiling) {
    // Every block reads all kernels, so that there are no more blocks than the threads need.
    const int64_t items = lowbit_threads() > 1 ? kItemsPerThread * lowbit_threads() : 1;
    const int64_t shared = std::max(ceil_div(tiling.rows, items), kMinTiles / tiling.columns);
    int64_t best = 1;
    for (int64_t rows = 2; rows <= shared && rows * tiling.columns <= kMaxTiles; rows++) {
        const int64_t tiles = rows * tiling.columns, other = best * tiling.columns;
        if (tiles * ceil_div(other, kRows) >= other * ceil_div(tiles, kRows)) best = rows;
    }
    return best;
}

class WinogradConv {
  public:
    WinogradConv(const gemm::Convolution& convolution, const gemm::Product& product)
        : convolution_(convolution),
          product_(product),
          transforms_(transforms_for(instruction_set())),
          products_(point_products()),
          tiling_(convolution.batch, convolution.result.height, convolution.result.width),
          source_panels_(ceil_div(convolution.source.channels, kPanel)),
          result_panels_(ceil_div(convolution.result.channels, kPanel)),
          kernel_panel_(source_panels_ * kRun * kStep) {}

    // Whether the results fit into the product's multiples, if these are wanted.
    bool run() {
        if (tiling_.rows * tiling_.columns <= convolution_.result.channels) {
            run_by_outputs();
        } else {
            run_by_tiles();
        }
        return fits_;
    }

  private:
    void run_by_tiles() {
        thread_local Scratch scratch;
        const int64_t rows = tile_rows_per_block(tiling_);
        int16_t* points = scratch.get<int16_t>(kPoints * kernel_point(result_panels_));
        const Kernels kernels = transform_kernels(0, result_panels_, points, true);
        parallel_for(ceil_div(tiling_.rows, rows), [&](int64_t item) {
            if (!fits_) return;
            const TileBlock block =
                transform_block(item * rows, std::min(tiling_.rows, (item + 1) * rows), false);
            for (int64_t o = 0; o < result_panels_; o += kPanelsTogether) {
                run_block(block, kernels, o, std::min(kPanelsTogether, result_panels_ - o));
            }
        });
    }

    // Transformed source, [point][panel][tile][16 channels].
    struct TileBlock {
        const int16_t* points;
        int64_t point;        // elements of a point
        int64_t first, last;  // rows of tiles
        int64_t tiles;
    };

    // Transformed kernels of some panels of result channels, [point][panel][pair of source channels][16][2].
    struct Kernels {
        const int16_t* points;
        int64_t point;            // elements of a point
        int64_t first;            // panel
        int64_t panels_together;  // of source channels, whose results are exact
    };

    // With more kernels than tiles, kernels are transformed where they are used, and stay in the cache.
    void run_by_outputs() {
        const TileBlock block = transform_block(0, tiling_.rows, true);
        parallel_for(ceil_div(result_panels_, kPanelsTogether), [&](int64_t item) {
            thread_local Scratch scratch;
            const int64_t first = item * kPanelsTogether,
                          count = std::min(kPanelsTogether, result_panels_ - first);
            int16_t* points = scratch.get<int16_t>(kPoints * kernel_point(count));
            run_block(block, transform_kernels(first, count, points, false), first, count);
        });
    }

    // Not a power of two, so that points use different cache sets.
    int64_t kernel_point(int64_t panels) const { return panels * kernel_panel_ + kStep; }

    Kernels transform_kernels(int64_t first, int64_t panels, int16_t* points, bool in_parallel) const {
        thread_local Scratch magnitudes_scratch;
        int64_t* magnitudes = magnitudes_scratch.get<int64_t>(panels);
        const int64_t point = kernel_point(panels);
        const auto transform = [&](int64_t i) {
            magnitudes[i] = transform_kernel_panel(first + i, points + i * kernel_panel_, point);
        };
        if (in_parallel) {
            parallel_for(panels, transform);
        } else {
            for (int64_t i = 0; i < panels; i++) transform(i);
        }
        // A sum is at most the largest pixel times the sum of a kernel's magnitudes. Where that is too large,
        // fewer channels are summed at a time: as many as the largest of all weights would allow.
        const int64_t source = max_magnitude(*product_.source), weight = max_magnitude(*product_.weight);
        const bool fits = *std::max_element(magnitudes, magnitudes + panels) * source <= kLargestSum;
        // Any bytes allow more than one panel.
        return {points, point, first,
                fits ? source_panels_ : kLargestSum / (kPanel * kTaps * source * weight)};
    }

    // The kernels of a panel of result channels; returns the largest sum of a kernel's magnitudes.
    int64_t transform_kernel_panel(int64_t panel, int16_t* points, int64_t point) const {
        thread_local Scratch taps_scratch, rows_scratch;
        const int64_t row = source_panels_ * kPanel, block = kPanel * kPanel;
        int16_t* taps = taps_scratch.get<int16_t>(kPanel * kTaps * row);
        int16_t* rows = rows_scratch.get<int16_t>(kPoints * block);  // [point][result][source channels]
        const int64_t outputs = std::min(kPanel, convolution_.result.channels - panel * kPanel);
        for (int64_t o = 0; o < outputs; o++) load_taps(panel * kPanel + o, taps + o * kTaps * row);
        std::fill(taps + outputs * kTaps * row, taps + kPanel * kTaps * row, 0);
        int64_t magnitudes[kPanel] = {};
        for (int64_t c = 0; c < row; c += kPanel) {
            for (int64_t o = 0; o < kPanel; o++) {
                magnitudes[o] +=
                    transforms_.kernel(taps + o * kTaps * row + c, row, rows + o * kPanel, block);
            }
            for (int64_t i = 0; i < kPoints; i++) {
                gemm::interleave_rows(reinterpret_cast<const uint32_t*>(rows + i * block), kRun,
                                      reinterpret_cast<uint32_t*>(points + i * point + c / 2 * kStep));
            }
        }
        return *std::max_element(magnitudes, magnitudes + kPanel);
    }

    // taps[k * row + c] of a result channel, k being the position in the source and `row` all source channels
    // with padding, which is 0.
    void load_taps(int64_t o, int16_t* taps) const {
        const int64_t in = convolution_.source.channels, out = convolution_.result.channels;
        const int64_t row_elements = source_panels_ * kPanel;
        const uint8_t* all = static_cast<const uint8_t*>(product_.weight->integers);
        const uint8_t* first = all + (product_.transposed ? o : o * in) * kTaps;
        int64_t offsets[kTaps];
        for (const gemm::Tap& tap : convolution_.phases[0].taps) {
            const int64_t row = tap.row + convolution_.pad_top, column = tap.column + convolution_.pad_left;
            offsets[tap.index] = (3 * row + column) * row_elements;
        }
        if (in < row_elements) std::fill(taps, taps + kTaps * row_elements, 0);
        gemm::pack_planes({first, all + in * out * kTaps, product_.weight->lowest < 0}, in,
                          (product_.transposed ? out : 1) * kTaps, kTaps, offsets, 0,
                          gemm::ElementType::int16, taps);
    }

    TileBlock transform_block(int64_t first, int64_t last, bool in_parallel) const {
        thread_local Scratch scratch;
        const int64_t tiles = (last - first) * tiling_.columns;
        // Not a power of two, so that points use different cache sets.
        const int64_t point = source_panels_ * tiles * kPanel + 2 * kPanel;
        int16_t* points = scratch.get<int16_t>(kPoints * point);
        const gemm::Image& image = convolution_.source;
        const Bytes bytes{static_cast<const uint8_t*>(product_.source->integers),
                          convolution_.batch,
                          image.channels,
                          image.height,
                          image.width,
                          convolution_.pad_top,
                          convolution_.pad_left,
                          kSide,
                          product_.source->lowest < 0};
        const auto transform = [&](int64_t panel) {
            for_each_image(tiling_, first, last, [&](int64_t n, int64_t at, int64_t rows, int64_t before) {
                transforms_.source(load_panel(bytes, tiling_, n, panel, at, rows),
                                   points + (panel * tiles + before) * kPanel, point);
            });
        };
        if (in_parallel) {
            parallel_for(source_panels_, transform);
        } else {
            for (int64_t panel = 0; panel < source_panels_; panel++) transform(panel);
        }
        return {points, point, first, last, tiles};
    }

    // The results of a block of tiles, for `count` panels of result channels from panel `first` on.
    void run_block(const TileBlock& block, const Kernels& kernels, int64_t first, int64_t count) {
        thread_local Scratch sums_scratch, others_scratch;
        const int64_t panel_sums = block.tiles * kPanel;
        const int64_t point = count * panel_sums + kPanel;  // not a power of two, see above
        int32_t* sums = sums_scratch.get<int32_t>(kPoints * point);
        const bool in_parts = product_.sums || kernels.panels_together < source_panels_;
        int32_t* others = in_parts ? others_scratch.get<int32_t>(count * panel_sums * kPixels) : nullptr;
        for (int64_t from = 0; from < source_panels_; from += kernels.panels_together) {
            const int64_t panels = std::min(kernels.panels_together, source_panels_ - from);
            multiply(block, kernels, first, count, from, panels, sums, point);
            const bool is_last = from + panels == source_panels_;
            for (int64_t k = 0; k < count; k++) {
                int32_t* own = in_parts ? others + k * panel_sums * kPixels : nullptr;
                if (!is_last || product_.sums) {
                    transforms_.add_pixels(sums + k * panel_sums, point, block.tiles, from > 0, own);
                }
                if (!is_last) continue;
                if (product_.sums) {
                    store_sums(block, first + k, own);
                } else {
                    store_results(block, first + k, sums + k * panel_sums, point, from > 0 ? own : nullptr);
                }
            }
        }
    }

    // sums[point][panel of results][tile][16 channels], over some panels of source channels.
    void multiply(const TileBlock& block, const Kernels& kernels, int64_t first, int64_t count, int64_t from,
                  int64_t panels, int32_t* sums, int64_t point) const {
        const int64_t pairs = ceil_div(convolution_.source.channels, 2), run = block.tiles * kPanel;
        const int64_t steps = std::min(panels * kRun, pairs - from * kRun);
        for (int64_t i = 0; i < kPoints; i++) {
            const int16_t* matrix = kernels.points + i * kernels.point + from * kRun * kStep;
            for (int64_t k = 0; k < count; k++) {
                products_.by_row({block.points + i * block.point + from * run, run, block.tiles, steps,
                                  matrix + (first + k - kernels.first) * kernel_panel_,
                                  sums + i * point + k * run});
            }
        }
    }

    // body(image, offset of a row of tiles in a plane, rows and tiles of it) for a block.
    template <class Body>
    void for_each_tile_row(const TileBlock& block, const Body& body) const {
        const gemm::Image& image = convolution_.result;
        for (int64_t row = block.first; row < block.last; row++) {
            const int64_t top = row % tiling_.tile_rows * kTile;
            body(row / tiling_.tile_rows, top * image.width, std::min(kTile, image.height - top),
                 (row - block.first) * tiling_.columns);
        }
    }

    void store_results(const TileBlock& block, int64_t panel, const int32_t* sums, int64_t point,
                       const int32_t* others) {
        const gemm::Image& image = convolution_.result;
        const lowbit_operand &source = *product_.source, &weight = *product_.weight;
        const int64_t o = panel * kPanel, channels = std::min(kPanel, image.channels - o);
        const int64_t plane = image.height * image.width;
        float bias[kPanel] = {}, scale[kPanel] = {};
        if (product_.bias) std::copy_n(product_.bias + o, channels, bias);
        for_each_tile_row(block, [&](int64_t n, int64_t offset, int64_t rows, int64_t tile) {
            const int64_t first = (n * image.channels + o) * plane + offset;
            const ResultTiles to{plane, image.width, rows, image.width, channels};
            const int32_t* own = others ? others + tile * kPixels * kPanel : nullptr;
            if (const lowbit_multiples* all = product_.multiples) {
                const lowbit_multiples multiples{all->low + first, all->high ? all->high + first : nullptr};
                if (!transforms_.multiples(sums + tile * kPanel, point, tiling_.columns, own, to,
                                           multiples)) {
                    fits_ = false;
                }
                return;
            }
            for (int64_t c = 0; c < channels; c++) {
                scale[c] = source.scale[n * source.of_n] * weight.scale[(o + c) * product_.scale_of_channel];
            }
            transforms_.values(sums + tile * kPanel, point, tiling_.columns, own, to,
                               {product_.values + first, scale, product_.bias ? bias : nullptr});
        });
    }

    void store_sums(const TileBlock& block, int64_t panel, const int32_t* sums) const {
        const gemm::Image& image = convolution_.result;
        const int64_t o = panel * kPanel, channels = std::min(kPanel, image.channels - o);
        const int64_t plane = image.height * image.width;
        for_each_tile_row(block, [&](int64_t n, int64_t offset, int64_t rows, int64_t tile) {
            for (int64_t c = 0; c < channels; c++) {
                int64_t* to = product_.sums + (n * image.channels + o + c) * plane + offset;
                for (int64_t i = 0; i < rows; i++) {
                    for (int64_t j = 0; j < image.width; j++) {
                        const int64_t pixel = (tile + j / kTile) * kPixels + i * kTile + j % kTile;
                        to[i * image.width + j] = sums[pixel * kPanel + c];
                    }
                }
            }
        });
    }

    const gemm::Convolution& convolution_;
    const gemm::Product& product_;
    const Transforms& transforms_;
    const PointProducts& products_;
    const Tiling tiling_;
    const int64_t source_panels_, result_panels_;  // of channels
    const int64_t kernel_panel_;                   // int16 elements of a point of a panel of kernels
    std::atomic<bool> fits_{true};
};

}  // namespace

bool run(const gemm::Convolution& convolution, const gemm::Product& product) {
    return WinogradConv(convolution, product).run();
}

}  // namespace lowbit::winograd
