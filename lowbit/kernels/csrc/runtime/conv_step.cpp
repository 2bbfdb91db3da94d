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
        panels_ = weights.shape.groups * weights.panels;
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

    int64_t weight_bytes() const override { return static_cast<int64_t>(plan_.weights->bytes.size()); }

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
        for (int64_t i = 0; i < count; i++) {
            const int64_t channel = (panel + i) * kPanel;
            plan_.finish(memory, sums + i * kPanelSums, offsets, pixels, (number + i) * kPanel,
                         group * weights.shape.outputs + channel,
                         std::min(kPanel, weights.shape.outputs - channel));
        }
    }

    ConvPlan plan_;
    int64_t strip_, strips_, panels_;
    bool panels_outside_;
    std::vector<Segment> segments_;
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
    StripOutput out{pixels,           padded,         channels,
                    written,          offsets.target, memory.at(target.bytes.slot) + channel,
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

// ---- Packing.

namespace {

enum class Storage { bytes, words, nibbles };

// The micro-kernel for operands of these magnitudes, and how it wants its weights.
Storage choose_kernel(int64_t largest_source, int64_t largest, bool fits_nibbles, PackedWeights* packed) {
    const gemm::MicrokernelChoice choice = gemm::choose_microkernel(largest_source, largest, true);
    packed->kernel = choice.microkernel;
#if LOWBIT_X86
    if (choice.packed == gemm::ElementType::int16) {
        packed->kernel = {1, run_wide_avx2, run_wide_avx2, 0};
        packed->step_bytes = 128;
        return Storage::words;
    }
#endif
    if (!fits_nibbles) return Storage::bytes;
    packed->step_bytes = 32;
    packed->kernel = {1, run_nibbles_portable, run_nibbles_portable, 0};
#if LOWBIT_X86
    const InstructionSet isa = instruction_set();
    if (isa >= InstructionSet::avx512vnni) {
        packed->kernel = {2, run_nibbles_two_panels_avx512vnni, run_nibbles_avx512vnni, 0};
    } else if (isa >= InstructionSet::avx2) {
        const int64_t pair =
            std::max<int64_t>(2 * largest_source * largest, 1);  // in int16, at least 8 steps
        packed->kernel = {1, run_nibbles_avx2, run_nibbles_avx2, INT16_MAX / pair};
    }
#endif
    return Storage::nibbles;
}

// The weight of a channel (of 16) and an input (of 4) in the bytes of a step.
void store_weight(Storage storage, int64_t lane, int64_t input, int16_t value, uint8_t* step) {
    if (storage == Storage::words) {  // [first two inputs, last two][16 channels][2], int16
        memcpy(step + input / 2 * 64 + lane * 4 + input % 2 * 2, &value, 2);
    } else if (storage == Storage::bytes) {
        step[lane * 4 + input] = static_cast<uint8_t>(value);
    } else {  // with 8 added; the upper half of a byte is the channel 8 further
        uint8_t& byte = step[lane % 8 * 4 + input];
        byte =
            static_cast<uint8_t>(lane < 8 ? (byte & 0xf0) | (value + 8) : (byte & 0x0f) | (value + 8) << 4);
    }
}

}  // namespace

PackedPointer pack_weights(const ConvShape& shape, const int16_t* integers, const Grid& source) {
    const int64_t per_output = shape.inputs * shape.taps(), outputs = shape.groups * shape.outputs;
    int lowest = 0, highest = 0;
    for (int64_t i = 0; i < outputs * per_output; i++) {
        lowest = std::min<int>(lowest, integers[i]), highest = std::max<int>(highest, integers[i]);
    }
    const int64_t largest = std::max(-lowest, highest);
    const int64_t largest_sum = std::max(source.highest, 1) * largest * per_output * 2;
    check(largest_sum < INT32_MAX,
          "a layer with " + std::to_string(per_output) + " products per output would overflow 32 bits");
    auto packed = std::make_shared<PackedWeights>();
    packed->shape = shape;
    packed->largest_sum = static_cast<double>(largest_sum);
    if (shape.is_depthwise()) {
        pack_depthwise(integers, source, packed.get());
        return packed;
    }
    const Storage storage =
        choose_kernel(source.highest, largest, lowest >= -8 && highest <= 7, packed.get());
    const int64_t steps = ceil_div(shape.inputs, 4), taps = shape.taps();
    packed->panels = ceil_div(shape.outputs, kPanel);
    packed->panel_bytes = taps * steps * packed->step_bytes;
    packed->bytes.resize(static_cast<size_t>(shape.groups * packed->panels * packed->panel_bytes),
                         storage == Storage::nibbles ? 0x88 : 0);
    packed->initial.resize(static_cast<size_t>(shape.groups * packed->panels * kPanel));
    for (int64_t o = 0; o < outputs; o++) {
        const int64_t group = o / shape.outputs, within = o % shape.outputs;
        const int64_t panel = group * packed->panels + within / kPanel, lane = within % kPanel;
        uint8_t* to = packed->bytes.data() + panel * packed->panel_bytes;
        int64_t sum = 0;
        for (int64_t c = 0; c < shape.inputs; c++) {
            for (int64_t t = 0; t < taps; t++) {
                const int16_t value = integers[(o * shape.inputs + c) * taps + t];
                store_weight(storage, lane, c % 4, value, to + (t * steps + c / 4) * packed->step_bytes);
                sum += value;
            }
        }
        packed->initial[panel * kPanel + lane] = static_cast<int32_t>(-source.zero * sum);
    }
    return packed;
}

}  // namespace lowbit::runtime
