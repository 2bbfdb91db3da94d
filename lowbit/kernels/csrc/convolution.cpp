// From a geometry to its convolutions; see convolution.h.
#include "convolution.h"

#include <algorithm>

namespace lowbit::conv {
namespace {

int64_t output_size(int64_t size, int64_t before, int64_t after, int64_t kernel, int64_t dilation, int64_t stride) {
    return (size + before + after - dilation * (kernel - 1) - 1) / stride + 1;
}

Image input_of(const lowbit_geometry& g) { return {g.channels / g.groups, g.height, g.width}; }

Image output_of(const lowbit_geometry& g) {
    return {g.outputs / g.groups,
            output_size(g.height, g.pad_top, g.pad_bottom, g.kernel_h, g.dilation_h, g.stride_h),
            output_size(g.width, g.pad_left, g.pad_right, g.kernel_w, g.dilation_w, g.stride_w)};
}

// Room for every pixel that a tap reaches; those outside of the image are padding.
void add_padding(Convolution& convolution) {
    int64_t top = 0, left = 0, bottom = convolution.source.height, right = convolution.source.width;
    for (const Part& part : convolution.parts) {
        if (!part.rows || !part.columns) continue;
        for (const Tap& tap : part.taps) {
            top = std::min(top, tap.row);
            left = std::min(left, tap.column);
            bottom = std::max(bottom, (part.rows - 1) * part.step_h + tap.row + 1);
            right = std::max(right, (part.columns - 1) * part.step_w + tap.column + 1);
        }
    }
    convolution.above = -top;
    convolution.before = -left;
    convolution.padded_height = bottom - top;
    convolution.padded_width = right - left;
}

// Along one axis: the pixels of a phase, and the taps that meet them with where they lie in the source.
struct Phase {
    int64_t first, count;
    std::vector<std::pair<int64_t, int64_t>> taps;  // source, kernel
};

Phase phase_of(int64_t phase, int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
    const int64_t first = ((phase - pad) % stride + stride) % stride;
    Phase found{first, first < size ? (size - first - 1) / stride + 1 : 0, {}};
    for (int64_t k = 0; k < kernel; k++) {
        // Pixel first + i * stride met, in the forward product, output pixel i + source by this tap.
        if (k * dilation % stride == phase) found.taps.push_back({(first + pad - k * dilation) / stride, k});
    }
    return found;
}

}  // namespace

Convolution forward_of(const lowbit_geometry& g) {
    Convolution convolution{g.batch, g.groups, g.kernel_h * g.kernel_w, input_of(g), output_of(g), 0, 0, 0, 0, {}};
    const Image& result = convolution.result;
    Part part{{}, result.height, result.width, g.stride_h, g.stride_w, 0, 0, 1, 1};
    for (int64_t row = 0; row < g.kernel_h; row++) {
        for (int64_t column = 0; column < g.kernel_w; column++) {
            part.taps.push_back({row * g.dilation_h - g.pad_top, column * g.dilation_w - g.pad_left,
                                 row * g.kernel_w + column});
        }
    }
    convolution.parts.push_back(part);
    add_padding(convolution);
    return convolution;
}

Convolution grad_input_of(const lowbit_geometry& g, bool kernel_order) {
    Convolution convolution{g.batch, g.groups, g.kernel_h * g.kernel_w, output_of(g), input_of(g), 0, 0, 0, 0, {}};
    for (int64_t phase_h = 0; phase_h < g.stride_h; phase_h++) {
        for (int64_t phase_w = 0; phase_w < g.stride_w; phase_w++) {
            const Phase down = phase_of(phase_h, g.height, g.kernel_h, g.stride_h, g.pad_top, g.dilation_h);
            const Phase along = phase_of(phase_w, g.width, g.kernel_w, g.stride_w, g.pad_left, g.dilation_w);
            Part part{{}, down.count, along.count, 1, 1, down.first, along.first, g.stride_h, g.stride_w};
            for (const auto& [row, kernel_row] : down.taps) {
                for (const auto& [column, kernel_column] : along.taps) {
                    part.taps.push_back({row, column, kernel_row * g.kernel_w + kernel_column});
                }
            }
            if (!kernel_order) std::reverse(part.taps.begin(), part.taps.end());
            convolution.parts.push_back(part);
        }
    }
    add_padding(convolution);
    return convolution;
}

}  // namespace lowbit::conv
