// forward and grad_input as implicit GEMM: the loops over groups, images, panels of 16 channels and strips of
// pixels.
//
// For every group: pack the weights; then, for as many images as fit into the L2 cache, pack the images and
// compute strips of pixels times panels of channels. Every strip is summed by the micro-kernel and stored by
// the epilogue. Where there are enough images, every thread packs and multiplies its own; else threads share
// the panels and strips of the same images.
#include "gemm/conv_gemm.h"

#include "common/threads.h"
#include "gemm/packing.h"

namespace lowbit::gemm {
namespace {

int64_t output_size(int64_t size, int64_t before, int64_t after, int64_t kernel, int64_t dilation,
                    int64_t stride) {
    return (size + before + after - dilation * (kernel - 1) - 1) / stride + 1;
}

Image input_of(const lowbit_geometry& g) { return {g.channels / g.groups, g.height, g.width}; }

Image output_of(const lowbit_geometry& g) {
    return {g.outputs / g.groups,
            output_size(g.height, g.pad_top, g.pad_bottom, g.kernel_h, g.dilation_h, g.stride_h),
            output_size(g.width, g.pad_left, g.pad_right, g.kernel_w, g.dilation_w, g.stride_w)};
}

// Pads the source by what the taps reach outside of the image.
void set_padding(Convolution& convolution) {
    int64_t top = 0, left = 0, bottom = convolution.source.height, right = convolution.source.width;
    for (const Phase& phase : convolution.phases) {
        if (!phase.rows || !phase.columns) continue;
        for (const Tap& tap : phase.taps) {
            top = std::min(top, tap.row);
            left = std::min(left, tap.column);
            bottom = std::max(bottom, (phase.rows - 1) * phase.in_stride_h + tap.row + 1);
            right = std::max(right, (phase.columns - 1) * phase.in_stride_w + tap.column + 1);
        }
    }
    convolution.pad_top = -top;
    convolution.pad_left = -left;
    convolution.padded_height = bottom - top;
    convolution.padded_width = right - left;
}

// One axis of a phase: its pixels, and the taps that they meet.
struct AxisPhase {
    int64_t first, count;
    std::vector<std::pair<int64_t, int64_t>> taps;  // (offset in the source, index in the kernel)
};

AxisPhase axis_phase(int64_t phase, int64_t size, int64_t kernel, int64_t stride, int64_t pad,
                     int64_t dilation) {
    const int64_t first = ((phase - pad) % stride + stride) % stride;
    AxisPhase found{first, first < size ? (size - first - 1) / stride + 1 : 0, {}};
    for (int64_t k = 0; k < kernel; k++) {
        // In forward, this tap connects input pixel first + i * stride with output pixel i + offset.
        if (k * dilation % stride == phase) found.taps.push_back({(first + pad - k * dilation) / stride, k});
    }
    return found;
}

}  // namespace

Convolution forward_convolution(const lowbit_geometry& g) {
    Convolution convolution{g.batch, g.groups, g.kernel_h * g.kernel_w, input_of(g), output_of(g), 0, 0, 0,
                            0,       {}};
    const Image& result = convolution.result;
    Phase phase{{}, result.height, result.width, g.stride_h, g.stride_w, 0, 0, 1, 1};
    for (int64_t row = 0; row < g.kernel_h; row++) {
        for (int64_t column = 0; column < g.kernel_w; column++) {
            phase.taps.push_back({row * g.dilation_h - g.pad_top, column * g.dilation_w - g.pad_left,
                                  row * g.kernel_w + column});
        }
    }
    convolution.phases.push_back(phase);
    set_padding(convolution);
    return convolution;
}

Convolution grad_input_convolution(const lowbit_geometry& g, bool kernel_order) {
    Convolution convolution{g.batch, g.groups, g.kernel_h * g.kernel_w, output_of(g), input_of(g), 0, 0, 0,
                            0,       {}};
    for (int64_t phase_h = 0; phase_h < g.stride_h; phase_h++) {
        for (int64_t phase_w = 0; phase_w < g.stride_w; phase_w++) {
            const AxisPhase down =
                axis_phase(phase_h, g.height, g.kernel_h, g.stride_h, g.pad_top, g.dilation_h);
            const AxisPhase along =
                axis_phase(phase_w, g.width, g.kernel_w, g.stride_w, g.pad_left, g.dilation_w);
            Phase phase{{}, down.count, along.count, 1, 1, down.first, along.first, g.stride_h, g.stride_w};
            for (const auto& [row, kernel_row] : down.taps) {
                for (const auto& [column, kernel_column] : along.taps) {
                    phase.taps.push_back({row, column, kernel_row * g.kernel_w + kernel_column});
                }
            }
            if (!kernel_order) std::reverse(phase.taps.begin(), phase.taps.end());
            convolution.phases.push_back(phase);
        }
    }
    set_padding(convolution);
    return convolution;
}

namespace {

struct alignas(64) InitialSums {
    int32_t values[kPanel];
};

// What all strips of a phase share.
struct PhasePlan {
    const Phase* phase;
    int64_t pixels;                           // per image
    std::vector<Accumulation> accumulations;  // one, or one per tap
    const int64_t* pixel_offsets;             // of all images, in the packed ones
    const int64_t* output_offsets;            // of one image, in a plane of the result; null: consecutive
    std::vector<int64_t> initial_sums_wide;   // per accumulation, for the channels of all panels
    std::vector<InitialSums> initial_sums;    // the same as int32, then zeros for one accumulation
    TileCovers covers;                        // for AMX
};

// A strip of pixels times some panels.
struct StripTask {
    const PackedBatch& images;
    int64_t group, first_image, panel, panels, first_pixel, pixels;
};

class ConvGemm {
  public:
    ConvGemm(const Convolution& convolution, const Product& product)
        : convolution_(convolution),
          product_(product),
          layout_(convolution, *product.source, *product.weight),
          split_(convolution, layout_),
          weights_(convolution, layout_, *product.weight, product.transposed),
          images_(convolution, layout_, product, split_.images),
          kernel_(layout_.microkernel) {
        plan_phases();
        compute_offsets();
        choose_amx_tiles();
    }

    void run() {
        const int64_t step = images_.max_images(), rounds = (convolution_.batch + step - 1) / step;
        for (int64_t group = 0; group < convolution_.groups; group++) {
            weights_.pack(group, split_.in_parallel);
            for (PhasePlan& plan : plans_) initialize_sums(plan);
            for_each(split_.in_parallel && split_.by_images, rounds, [&](int64_t round) {
                const int64_t first = round * step, count = std::min(step, convolution_.batch - first);
                const PackedBatch batch = images_.room();
                for_each(!split_.by_images, count,
                         [&](int64_t slot) { images_.pack(batch, group, first + slot, slot); });
                run_images(batch, group, first, count);
            });
        }
    }

  private:
    void plan_phases() {
        int64_t before = 0;
        for (const Phase& phase : convolution_.phases) {
            const int64_t taps = static_cast<int64_t>(phase.taps.size());
            PhasePlan plan{&phase, phase.rows * phase.columns, {}, nullptr, nullptr, {}, {}, {}};
            for (int64_t t = 0; product_.sum_taps_in_fp32 && t < taps; t++) {
                plan.accumulations.push_back(plan_accumulation(phase, t, t + 1, before, layout_.row_bytes,
                                                               layout_.pixel_bytes, layout_.limits));
            }
            if (!product_.sum_taps_in_fp32) {
                plan.accumulations.push_back(plan_accumulation(phase, 0, taps, before, layout_.row_bytes,
                                                               layout_.pixel_bytes, layout_.limits));
            }
            if (plan.pixels) plans_.push_back(std::move(plan));
            before += taps;
        }
    }

    void compute_offsets() {
        thread_local Scratch pixel_scratch, output_scratch;
        int64_t count = 0;
        for (const PhasePlan& plan : plans_) count += images_.max_images() * plan.pixels + kSlack;
        int64_t* pixel_offsets = pixel_scratch.get<int64_t>(count);
        int64_t* output_offsets =
            output_scratch.get<int64_t>(convolution_.result.height * convolution_.result.width);
        for (PhasePlan& plan : plans_) {
            const Phase& phase = *plan.phase;
            plan.pixel_offsets = pixel_offsets;
            for (int64_t i = 0; i < images_.max_images(); i++) {
                for (int64_t row = 0; row < phase.rows; row++) {
                    const int64_t first =
                        i * images_.padded_pixels() + images_.pixel_index(row * phase.in_stride_h, 0);
                    for (int64_t column = 0; column < phase.columns; column++) {
                        *pixel_offsets++ = (first + column * phase.in_stride_w) * layout_.pixel_bytes;
                    }
                }
            }
            for (int64_t i = 0; i < kSlack; i++, pixel_offsets++) *pixel_offsets = pixel_offsets[-1];
            if (phase.out_stride_h == 1 && phase.out_stride_w == 1) continue;
            plan.output_offsets = output_offsets;
            for (int64_t row = 0; row < phase.rows; row++) {
                const int64_t first =
                    (phase.first_row + row * phase.out_stride_h) * convolution_.result.width;
                for (int64_t column = 0; column < phase.columns; column++) {
                    *output_offsets++ = first + phase.first_column + column * phase.out_stride_w;
                }
            }
        }
    }

    void choose_amx_tiles() {
#if LOWBIT_AMX
        if (instruction_set() != InstructionSet::amx || layout_.packed != ElementType::int8) return;
        std::vector<PhasePattern> patterns;
        for (const PhasePlan& plan : plans_) {
            const int64_t pixels = images_.max_images() * plan.pixels;
            PhasePattern pattern{plan.pixel_offsets, pixels, layout_.pixel_stride(*plan.phase),
                                 layout_.panels,     0,      {}};
            for (const Accumulation& sum : plan.accumulations) {
                for (const AccumulationSpan& span : sum.spans) {
                    pattern.sums++;
                    for (const Segment& segment : span.segments) pattern.steps.push_back(segment.steps);
                }
            }
            patterns.push_back(std::move(pattern));
        }
        kernel_ = choose_amx(kernel_, patterns);
        for (size_t i = 0; kernel_.amx && i < plans_.size(); i++) {
            plans_[i].covers = cover(patterns[i], kernel_.pixels);
        }
#endif
    }

    void initialize_sums(PhasePlan& plan) {
        const size_t channels = static_cast<size_t>(layout_.panels * kPanel);
        plan.initial_sums_wide.assign(plan.accumulations.size() * channels, 0);
        for (size_t i = 0; i < plan.accumulations.size(); i++) {
            const Accumulation& sum = plan.accumulations[i];
            for (int64_t t = sum.first_tap; t < sum.first_tap + sum.taps; t++) {
                const int64_t* corrections = weights_.corrections(t);
                for (size_t c = 0; c < channels; c++) {
                    plan.initial_sums_wide[i * channels + c] += corrections[c];
                }
            }
        }
        plan.initial_sums.assign((plan.accumulations.size() + 1) * static_cast<size_t>(layout_.panels), {});
        for (size_t i = 0; i < plan.initial_sums_wide.size(); i++) {
            plan.initial_sums[i / kPanel].values[i % kPanel] =
                static_cast<int32_t>(plan.initial_sums_wide[i]);
        }
    }

    // Panel by panel, so that its weights stay in the cache. All phases of a strip together, because they
    // write to the same cache lines.
    void run_images(const PackedBatch& batch, int64_t group, int64_t first, int64_t count) {
        int64_t pixels = 0;
        for (const PhasePlan& plan : plans_) pixels = std::max(pixels, count * plan.pixels);
        const int64_t length = kernel_.pixels, strips = round_up(pixels, length) / length,
                      together = kernel_.panels;
        const int64_t bundles = round_up(layout_.panels, together) / together, threads = lowbit_threads();
        const bool shared = !split_.by_images;  // with other threads
        const int64_t wanted = shared ? round_up(threads * kItemsPerThread, bundles) / bundles : 1;
        const int64_t pieces = std::min(wanted, strips), strips_per_item = round_up(strips, pieces) / pieces;
        for_each(shared, bundles * pieces, [&](int64_t item) {
            const int64_t panel = item / pieces * together, begin = item % pieces * strips_per_item;
            const int64_t panels = std::min(together, layout_.panels - panel);
            const ThreadSetup setup(kernel_);
            for (int64_t strip = begin; strip < std::min(strips, begin + strips_per_item); strip++) {
                for (const PhasePlan& plan : plans_) {
                    const int64_t p = strip * length, left = count * plan.pixels - p;
                    if (left <= 0) continue;
                    const StripTask task{batch, group, first, panel, panels, p, std::min(length, left)};
                    product_.sum_taps_in_fp32 ? run_strip_by_tap(plan, task) : run_strip(plan, task);
                }
            }
        });
    }

    void run_span(const PhasePlan& plan, const AccumulationSpan& span, const StripTask& task,
                  const int32_t* initial_sums, int32_t* sums) {
        Strip strip{task.images.bytes,
                    plan.pixel_offsets + task.first_pixel,
                    task.pixels,
                    span.segments.data(),
                    static_cast<int64_t>(span.segments.size()),
                    weights_.panel(task.panel) + span.first_step * 4 * kPanel,
                    layout_.panel_bytes,
                    initial_sums,
                    sums,
                    nullptr,
                    0,
                    layout_.pixel_stride(*plan.phase),
                    kernel_.tail};
        if (kernel_.amx) {
            // The last strip may have fewer pixels than its tiles cover when images are fewer: `sums` is
            // large enough for them.
            const int64_t* strips = plan.covers.strips.data() + task.first_pixel / kernel_.pixels;
            strip.covers = plan.covers.tiles.data() + strips[0];
            strip.tile_count = strips[1] - strips[0];
        }
        (task.panels == 1 ? kernel_.run_one : kernel_.run)(strip);
    }

    // The sums of a strip: in `sums` where int32 holds them, else in `wide`, and then returns true.
    bool accumulate(const PhasePlan& plan, size_t number, const StripTask& task, int32_t* sums,
                    int64_t* wide) {
        const Accumulation& sum = plan.accumulations[number];
        const size_t first = number * static_cast<size_t>(layout_.panels * kPanel) + task.panel * kPanel;
        if (sum.spans.size() == 1) {
            run_span(plan, sum.spans[0], task, plan.initial_sums[first / kPanel].values, sums);
            return false;
        }
        for (int64_t i = 0; i < task.panels * kPanelSums; i++) {
            wide[i] = plan.initial_sums_wide[first + i / kPanelSums * kPanel + i % kPanel];
        }
        const int32_t* zeros = plan.initial_sums[plan.initial_sums_wide.size() / kPanel].values;
        for (const AccumulationSpan& span : sum.spans) {
            run_span(plan, span, task, zeros, sums);
            for (int64_t i = 0; i < task.panels * kPanelSums; i++) wide[i] += sums[i];
        }
        return true;
    }

    void run_strip(const PhasePlan& plan, const StripTask& task) {
        alignas(64) int32_t sums[kMaxPanels * kPanelSums];
        alignas(64) int64_t wide[kMaxPanels * kPanelSums];
        if (accumulate(plan, 0, task, sums, wide)) {
            store_strip(plan, wide, task);
        } else {
            store_strip(plan, sums, task);
        }
    }

    // With a scale per source pixel: every tap is summed exactly, scaled and added in fp32.
    void run_strip_by_tap(const PhasePlan& plan, const StripTask& task) {
        alignas(64) int32_t sums[kMaxPanels * kPanelSums];
        alignas(64) int64_t wide[kMaxPanels * kPanelSums];
        alignas(64) float totals[kMaxPanels * kPanelSums] = {};
        int64_t pixel_indices[kStrip];
        float scale[kStrip];
        for (int64_t p = 0; p < task.pixels; p++) {
            pixel_indices[p] = plan.pixel_offsets[task.first_pixel + p] / layout_.pixel_bytes;
        }
        for (size_t t = 0; t < plan.accumulations.size(); t++) {
            const Tap& tap = plan.phase->taps[t];
            const float* scales = task.images.scales + tap.row * convolution_.padded_width + tap.column;
            for (int64_t p = 0; p < task.pixels; p++) scale[p] = scales[pixel_indices[p]];
            const bool is_wide = accumulate(plan, t, task, sums, wide);
            for (int64_t at = 0; at < task.panels * kPanelSums; at += kPanelSums) {
                if (is_wide) {
                    accumulate_scaled(wide + at, scale, task.pixels, totals + at);
                } else {
                    accumulate_scaled(sums + at, scale, task.pixels, totals + at);
                }
            }
        }
        store_strip(plan, totals, task);
    }

    // A strip may span several images; each part is stored on its own.
    template <class Number>
    void store_strip(const PhasePlan& plan, const Number* sums, const StripTask& task) {
        for (int64_t done = 0; done < task.pixels;) {
            const int64_t pixel = task.first_pixel + done;
            const int64_t n = task.first_image + pixel / plan.pixels, at = pixel % plan.pixels;
            const int64_t count = std::min(task.pixels - done, plan.pixels - at);
            for (int64_t panel = 0; panel < task.panels; panel++) {
                const Number* from = sums + panel * kPanelSums + done * kPanel;
                store_run(plan, from, task.group, n, (task.panel + panel) * kPanel, at, count);
            }
            done += count;
        }
    }

    // Stores `count` pixels of image n from pixel `at` on, for sixteen channels from c on.
    template <class Number>
    void store_run(const PhasePlan& plan, const Number* sums, int64_t group, int64_t n, int64_t c, int64_t at,
                   int64_t count) {
        const Image& result = convolution_.result;
        const int64_t plane = result.height * result.width;
        const int64_t channels = std::min(kPanel, result.channels - c);
        const int64_t first = ((n * convolution_.groups + group) * result.channels + c) * plane;
        const int64_t* output_offsets = plan.output_offsets ? plan.output_offsets + at : nullptr;
        const int64_t start = output_offsets ? first : first + at;
        if (product_.sums) {
            for (int64_t i = 0; i < channels * count; i++) {
                const int64_t p = i % count, channel = i / count;
                product_.sums[start + channel * plane + (output_offsets ? output_offsets[p] : p)] =
                    static_cast<int64_t>(sums[p * kPanel + channel]);
            }
            return;
        }
        float scale[kPanel] = {}, bias[kPanel] = {};
        const lowbit_operand &source = *product_.source, &weight = *product_.weight;
        const float of_source = product_.sum_taps_in_fp32 ? 1.0f : source.scale[n * source.of_n];
        for (int64_t i = 0; i < channels; i++) {
            scale[i] = of_source *
                       weight.scale[group * product_.scale_of_group + (c + i) * product_.scale_of_channel];
            if (product_.bias) bias[i] = product_.bias[group * result.channels + c + i];
        }
        store_dequantized(sums, OutputTile{product_.values + start, plane, output_offsets, count, channels,
                                           scale, product_.bias ? bias : nullptr});
    }

    const Convolution& convolution_;
    const Product& product_;
    const PackedLayout layout_;
    const ImageSplit split_;
    PackedWeights weights_;
    PackedImages images_;
    Microkernel kernel_;
    std::vector<PhasePlan> plans_;
};

}  // namespace

void run(const Convolution& convolution, const Product& product) { ConvGemm(convolution, product).run(); }

}  // namespace lowbit::gemm
