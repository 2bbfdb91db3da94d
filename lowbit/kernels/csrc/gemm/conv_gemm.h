// forward and grad_input as implicit GEMM: data structures shared by packing, the loops, and winograd/.
//
// A product is a set of convolutions over one padded image of the source (x, or dy). forward is one
// convolution. grad_input with stride s is s * s of them, one per phase: the input pixels that meet the same
// taps.
#pragma once
#include "gemm/gemm.h"
#include "gemm/microkernel.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace lowbit::gemm {

// Pixel (i, j) of a phase meets source pixel (i * in_stride_h + row, j * in_stride_w + column).
struct Tap {
    int64_t row, column;
    int64_t index;  // kernel row * kernel width + kernel column
};

// Pixel (i, j) of a phase is result pixel (first_row + i * out_stride_h, first_column + j * out_stride_w).
struct Phase {
    std::vector<Tap> taps;
    int64_t rows, columns;
    int64_t in_stride_h, in_stride_w;
    int64_t first_row, first_column;
    int64_t out_stride_h, out_stride_w;
};

struct Image {
    int64_t channels, height, width;  // channels of one group
};

struct Convolution {
    int64_t batch, groups, kernel_taps;
    Image source, result;
    int64_t pad_top, pad_left;            // padding that the taps need
    int64_t padded_height, padded_width;  // of the source with its padding
    std::vector<Phase> phases;            // every tap of the kernel is in exactly one
};

Convolution forward_convolution(const lowbit_geometry& geometry);

// `kernel_order`: the taps of a phase in the kernel's order, as sums in fp32 need them. Otherwise in the
// order of the source pixels, which is the reverse: adjacent taps then make one long run of the packed image.
Convolution grad_input_convolution(const lowbit_geometry& geometry, bool kernel_order);

struct Product {
    const lowbit_operand* source;
    const lowbit_operand* weight;
    bool transposed;           // the weight's first axis is the source's channels, not the result's
    int64_t scale_of_group;    // the weight's scale for channel c of the result in group g is
    int64_t scale_of_channel;  // scale[g * scale_of_group + c * scale_of_channel]
    bool sum_taps_in_fp32;     // the source has scales by pixel
    const float* bias;         // or null
    float* values;             // the result,
    int64_t* sums;             // or, when not null, only the exact sums,
    const lowbit_multiples* multiples = nullptr;  // or only these, which winograd/ alone can write
};

// Throws std::bad_alloc.
void run(const Convolution& convolution, const Product& product);

// ---- How a sum is accumulated: its reduction steps as contiguous segments, within the limits of int16 and
// int32.

// What is summed in int32 without interruption: almost always everything.
struct AccumulationSpan {
    int64_t first_step;  // counted over all taps of the kernel
    std::vector<Segment> segments;
};

// One sum per pixel and channel, over taps that are consecutive in a panel of weights.
struct Accumulation {
    int64_t first_tap, taps;
    std::vector<AccumulationSpan> spans;
};

struct AccumulationLimits {
    int64_t int16, int32;  // steps; int16 is 0 where no sums are in int16
};

// Steps whose sums stay in int32: each adds at most `products` products of the largest magnitudes. The
// initial value of a sum (-offset * the sum of the weights) needs no reserve: it cancels what the offset of
// the source adds.
inline int64_t steps_in_int32(int64_t largest_source, int64_t largest_weight, int64_t products) {
    return INT32_MAX / std::max<int64_t>(1, products * largest_source * largest_weight);
}

// The sum over taps [first, last) of a phase, whose first tap is number `taps_before` of the panel.
inline Accumulation plan_accumulation(const Phase& phase, int64_t first, int64_t last, int64_t taps_before,
                                      int64_t row_bytes, int64_t pixel_bytes, AccumulationLimits limits) {
    Accumulation sum{taps_before + first, last - first, {}};
    const int64_t steps_of_tap = pixel_bytes / 4;
    int64_t step = (taps_before + first) * steps_of_tap, in_int16 = 0, in_int32 = 0;
    sum.spans.push_back({step, {}});
    for (int64_t t = first; t < last; t++) {
        int64_t offset = phase.taps[t].row * row_bytes + phase.taps[t].column * pixel_bytes;
        for (int64_t left = steps_of_tap; left;) {
            if (in_int32 == limits.int32) {
                sum.spans.push_back({step, {}});
                in_int16 = in_int32 = 0;
            }
            std::vector<Segment>& segments = sum.spans.back().segments;
            int64_t steps = std::min(left, limits.int32 - in_int32);
            if (limits.int16) steps = std::min(steps, limits.int16 - in_int16);
            const bool is_contiguous = !segments.empty() && !segments.back().widen &&
                                       segments.back().offset + 4 * segments.back().steps == offset;
            if (is_contiguous) {
                segments.back().steps += steps;
            } else {
                segments.push_back({offset, steps, false});
            }
            left -= steps, step += steps, in_int16 += steps, in_int32 += steps;
            offset += 4 * steps;
            if (limits.int16 && in_int16 == limits.int16) {
                segments.back().widen = true;
                in_int16 = 0;
            }
        }
    }
    for (AccumulationSpan& span : sum.spans) {
        if (limits.int16 && !span.segments.empty()) span.segments.back().widen = true;
    }
    return sum;
}

// ---- How the operands are packed: sizes that follow from the convolution and the micro-kernel.

struct PackedLayout {
    PackedLayout(const Convolution& convolution, const lowbit_operand& source, const lowbit_operand& weight) {
        offset = source.lowest < 0 ? -source.lowest : 0;
        const int64_t largest_source = std::max(source.highest, 0) + offset;
        const int64_t largest_weight = std::max(std::abs(weight.lowest), std::abs(weight.highest));
        const MicrokernelChoice choice =
            choose_microkernel(largest_source, largest_weight, weight.highest < 128);
        microkernel = choice.microkernel;
        packed = choice.packed;
        if (packed == ElementType::int16) offset = 0;
        channels = round_up(convolution.source.channels, 4);
        pixel_bytes = channels * element_size(packed);
        row_bytes = convolution.padded_width * pixel_bytes;
        image_bytes = convolution.padded_height * row_bytes;
        panels = round_up(convolution.result.channels, kPanel) / kPanel;
        panel_bytes = convolution.kernel_taps * pixel_bytes * kPanel;
        limits = {microkernel.steps_in_int16,
                  steps_in_int32(largest_source, largest_weight, 4 / element_size(packed))};
    }

    // Bytes from one pixel of a phase to the next along its longest axis.
    int64_t pixel_stride(const Phase& phase) const {
        if (phase.columns > 1) return phase.in_stride_w * pixel_bytes;
        return phase.rows > 1 ? phase.in_stride_h * row_bytes : image_bytes;
    }

    Microkernel microkernel;
    ElementType packed;
    AccumulationLimits limits;
    int offset;        // added to the source's values, which makes them unsigned bytes
    int64_t channels;  // of the source, rounded up to whole words
    int64_t pixel_bytes, row_bytes, image_bytes;
    int64_t panels, panel_bytes;
};

// ---- The epilogue: sums of 16 channels, pixel by pixel, become scaled fp32 in NCHW planes (epilogue.cpp).

// Where a strip's values go: pixel p of channel c to first[c * plane + p], or to output_offsets[p] of the
// plane where these are given.
struct OutputTile {
    float* first;
    int64_t plane;
    const int64_t* output_offsets;
    int64_t pixels, channels;
    const float* scale;  // of each of the sixteen channels
    const float* bias;   // likewise, or null
};

// value = float(sum) * scale + bias, each operation rounded. Sums are [pixels][16]; kSlack more can be read.
void store_dequantized(const int32_t* sums, const OutputTile& out);
void store_dequantized(const int64_t* sums, const OutputTile& out);
void store_dequantized(const float* sums, const OutputTile& out);

// totals += float(sum) * scale[pixel], for sixteen channels.
void accumulate_scaled(const int32_t* sums, const float* scale, int64_t pixels, float* totals);
void accumulate_scaled(const int64_t* sums, const float* scale, int64_t pixels, float* totals);

}  // namespace lowbit::gemm
