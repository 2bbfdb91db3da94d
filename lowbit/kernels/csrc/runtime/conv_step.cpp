// Convolutions over bytes: strips of pixels times panels of 16 output channels; see conv_step.h and
// gemm/gemm.h.
#include "runtime/conv_step.h"

#include "common/cpu.h"
#include "gemm/conv_gemm.h"

#include <algorithm>

namespace lowbit::runtime {
namespace {

using gemm::kPanel;
using gemm::kPanelSums;
using gemm::kSlack;
using gemm::kStrip;
using gemm::Segment;

constexpr int64_t kItemsPerWorker = 4;

class ConvStep : public Step {
  public:
    explicit ConvStep(ConvPlan plan) : plan_(std::move(plan)) {
        const PackedWeights& weights = *plan_.weights;
        const int64_t pixels = plan_.out_pixels();
        strip_ = pixels <= kStrip ? pixels : weights.kernel.pixels;
        strips_ = ceil_div(pixels, strip_);
        // The larger operand is read once: in the outer loop.
        panels_outside_ = static_cast<int64_t>(weights.bytes.size()) > plan_.from.layout.bytes();
        plan_segments();
        if (panels_outside_) {
            offsets_.resize(static_cast<size_t>(strips_));
            for (int64_t i = 0; i < strips_; i++) find_offsets(i, &offsets_[static_cast<size_t>(i)]);
        }
        if (plan_.target.to_float) {
            writes = {plan_.target.slot};
        } else {
            writes = {plan_.target.bytes.slot};
        }
        reads = {plan_.from.slot};
        if (plan_.epilogue.has_residual) reads.push_back(plan_.target.residual.slot);
    }

    int64_t weight_bytes() const override {
        return static_cast<int64_t>(plan_.weights->bytes.size() + plan_.weights->extra_bytes.size());
    }

    void run(const Memory& memory, ThreadPool& pool) const override {
        if (!plan_.target.to_float) {
            const Bytes& to = plan_.target.bytes;
            fill_halo(to.layout, to.grid.zero, memory.at(to.slot));
        }
        const int64_t outer = panels_outside_ ? panel_items() : strips_;
        const int64_t inner = panels_outside_ ? strips_ : panel_items();
        const int64_t workers = pool.threads() * kItemsPerWorker;
        // Few outer items and several threads: the inner loop is divided, too.
        const int64_t parts = pool.threads() == 1 ? 1 : std::min(inner, ceil_div(workers, outer));
        pool.parallel_for(outer * parts, [&](int64_t item) {
            const int64_t first = inner * (item % parts) / parts, last = inner * (item % parts + 1) / parts;
            if (panels_outside_) {
                for (int64_t strip = first; strip < last; strip++) {
                    compute(memory, strip, offsets_[static_cast<size_t>(strip)], item / parts);
                }
            } else {
                StripOffsets offsets;
                find_offsets(item / parts, &offsets);
                for (int64_t panel = first; panel < last; panel++)
                    compute(memory, item / parts, offsets, panel);
            }
        });
    }

  private:
    int64_t panel_items() const {
        return plan_.weights->shape.groups * ceil_div(plan_.weights->panels, plan_.weights->kernel.panels);
    }

    void plan_segments() {
        const PackedWeights& weights = *plan_.weights;
        const Layout& layout = plan_.from.layout;
        const Window& win = plan_.window;
        const int64_t steps = ceil_div(weights.shape.inputs, 4), limit = weights.kernel.steps_in_int16;
        int64_t in_int16 = 0;
        for (int64_t i = 0; i < weights.shape.kernel[0]; i++) {
            for (int64_t j = 0; j < weights.shape.kernel[1]; j++) {
                int64_t offset =
                    i * win.dilation[0] * layout.row_bytes() + j * win.dilation[1] * layout.stride;
                for (int64_t step = 0; step < steps; step++) step_offsets_.push_back(offset + 4 * step);
                for (int64_t left = steps; left;) {
                    const int64_t now = limit ? std::min(left, limit - in_int16) : left;
                    const bool contiguous = !segments_.empty() && !segments_.back().widen &&
                                            segments_.back().offset + 4 * segments_.back().steps == offset;
                    if (contiguous) {
                        segments_.back().steps += now;
                    } else {
                        segments_.push_back({offset, now, false});
                    }
                    left -= now, offset += 4 * now, in_int16 += now;
                    if (limit && in_int16 == limit) segments_.back().widen = true, in_int16 = 0;
                }
            }
        }
        if (limit) segments_.back().widen = true;
    }

    int64_t pixels_of(int64_t strip) const { return std::min(strip_, plan_.out_pixels() - strip * strip_); }

    void find_offsets(int64_t strip, StripOffsets* offsets) const {
        const int64_t pixels = pixels_of(strip);
        plan_.find_offsets(strip * strip_, pixels, offsets);
        std::fill(offsets->source + pixels, offsets->source + pixels + kSlack, offsets->source[pixels - 1]);
    }

    // The products of the panel that the micro-kernel left out.
    void add_extras(const gemm::Strip& work, int64_t panel) const {
        const PackedWeights& weights = *plan_.weights;
        if (weights.extra_first.empty()) return;
        const int32_t first = weights.extra_first[panel], last = weights.extra_first[panel + 1];
        if (first == last) return;
#if LOWBIT_X86
        add_extras_avx2(work, weights.extra_steps.data() + first, last - first, step_offsets_.data(),
                        weights.extra_bytes.data() + first * 64);
#else
        (void)work;
#endif
    }

    // One strip times one or two panels.
    void compute(const Memory& memory, int64_t strip, const StripOffsets& offsets, int64_t item) const {
        const PackedWeights& weights = *plan_.weights;
        const int64_t together = weights.kernel.panels, per_group = ceil_div(weights.panels, together);
        const int64_t group = item / per_group, panel = item % per_group * together;
        const int64_t count = std::min(together, weights.panels - panel), pixels = pixels_of(strip);
        alignas(64) int32_t sums[gemm::kMaxPanels * kPanelSums];
        const int64_t number = group * weights.panels + panel;
        gemm::Strip work;
        work.source = memory.at(plan_.from.slot) + group * weights.shape.inputs;
        work.pixel_offsets = offsets.source;
        work.pixels = pixels;
        work.segments = segments_.data();
        work.count = static_cast<int64_t>(segments_.size());
        work.panel = weights.bytes.data() + number * weights.panel_bytes;
        work.panel_bytes = weights.panel_bytes;
        work.initial_sums = weights.initial.data() + number * kPanel;
        work.sums = sums;
        (count == together ? weights.kernel.run : weights.kernel.run_one)(work);
        add_extras(work, number);
        for (int64_t i = 0; i < count; i++) {
            const int64_t channel = (panel + i) * kPanel;
            plan_.finish(memory, sums + i * kPanelSums, offsets, pixels, (number + i) * kPanel,
                         group * weights.shape.outputs + channel,
                         std::min(kPanel, weights.shape.outputs - channel));
        }
    }

    ConvPlan plan_;
    int64_t strip_, strips_;
    bool panels_outside_;
    std::vector<Segment> segments_;
    std::vector<int64_t> step_offsets_;  // of all steps of a panel, in the source
    std::vector<StripOffsets> offsets_;  // if panels are outside: every strip is visited often
};

}  // namespace

// ---- What convolutions of both kinds share.

void ConvPlan::find_offsets(int64_t first, int64_t pixels, StripOffsets* offsets) const {
    const Layout& layout = from.layout;
    const int64_t step = window.stride[1] * layout.stride, image = window.out[0] * window.out[1];
    int64_t w = first % window.out[1], h = first / window.out[1] % window.out[0], n = first / image;
    for (int64_t i = 0; i < pixels;) {
        const int64_t row =
            layout.offset(n, h * window.stride[0] - window.pad_before[0], -window.pad_before[1]);
        const int64_t count = std::min(pixels - i, window.out[1] - w);
        for (int64_t j = 0; j < count; j++) offsets->source[i + j] = row + (w + j) * step;
        i += count;
        w = 0;
        if (++h == window.out[0]) h = 0, n++;
    }
    if (epilogue.has_residual) pixel_offsets(target.residual.layout, first, pixels, offsets->residual);
    if (!target.to_float) return pixel_offsets(target.bytes.layout, first, pixels, offsets->target);
    for (int64_t i = 0; i < pixels; i++) {
        offsets->target[i] = (first + i) / image * target.image + (first + i) % image * target.pixel;
    }
}

void ConvPlan::finish(const Memory& memory, const int32_t* sums, const StripOffsets& offsets, int64_t pixels,
                      int64_t padded, int64_t channel, int64_t channels) const {
    if (target.to_float) {
        dequantize_sums(epilogue, sums, pixels, padded, channels, offsets.target, target.plane,
                        memory.at<float>(target.slot) + channel * target.plane);
        return;
    }
    // Channels that do not exist may be written, unless they are those of the next group.
    const bool alone = weights->depthwise || weights->shape.groups == 1;
    const int64_t written = alone ? std::min(kPanel, target.bytes.layout.stride - channel) : channels;
    StripOutput out{pixels,           padded, written, offsets.target, memory.at(target.bytes.slot) + channel,
                    offsets.residual, nullptr};
    if (epilogue.has_residual) out.residual = memory.at(target.residual.slot) + channel;
    requantize(epilogue, sums, out);
}

StepPointer conv_step(const Bytes& from, const Window& window, PackedPointer weights, Epilogue epilogue,
                      const ConvTarget& target) {
    // Scales and biases by channel, with the gaps of incomplete panels between groups.
    const ConvShape& shape = weights->shape;
    if (!weights->depthwise) {
        const int64_t padded = shape.groups * weights->panels * kPanel;
        std::vector<float> scale(static_cast<size_t>(padded)), bias(static_cast<size_t>(padded));
        for (int64_t c = 0; c < shape.groups * shape.outputs; c++) {
            const int64_t to = c / shape.outputs * weights->panels * kPanel + c % shape.outputs;
            scale[to] = epilogue.scale[c], bias[to] = epilogue.bias[c];
        }
        epilogue.scale = std::move(scale), epilogue.bias = std::move(bias);
    }
    epilogue.prepare(weights->largest_sum);
    ConvPlan plan{from, window, std::move(weights), std::move(epilogue), target};
    if (plan.weights->depthwise) return depthwise_step(std::move(plan));
    return std::make_unique<ConvStep>(std::move(plan));
}

}  // namespace lowbit::runtime
