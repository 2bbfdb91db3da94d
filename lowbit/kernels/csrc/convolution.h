// A product as convolutions over one padded image: which pixels of the source meet which taps of the kernel.
//
// The forward product is one convolution. The gradient of an input whose stride is s is s * s of them, one for
// every phase: the pixels of the input that meet the same taps.
#pragma once
#include "products.h"

#include <vector>

namespace lowbit::conv {

// Pixel (i, j) of a part meets source pixel (i * step_h + row, j * step_w + column).
struct Tap {
    int64_t row, column;
    int64_t kernel;  // kernel row * kernel width + kernel column
};

// Pixel (i, j) is the result's (first_row + i * apart_h, first_column + j * apart_w).
struct Part {
    std::vector<Tap> taps;
    int64_t rows, columns;
    int64_t step_h, step_w;
    int64_t first_row, first_column;
    int64_t apart_h, apart_w;
};

struct Image {
    int64_t channels, height, width;  // channels of one group
};

struct Convolution {
    int64_t batch, groups, kernel;  // kernel: taps in all
    Image source, result;
    int64_t above, before;                 // padding that the taps need
    int64_t padded_height, padded_width;  // of the source with its padding
    std::vector<Part> parts;              // every tap of the kernel is in one of them
};

Convolution forward_of(const lowbit_geometry& geometry);

// `kernel_order`: the taps of a part row by row of the kernel; else by where they lie in the source, which is
// the other way round and lets neighbours be read in one go.
Convolution grad_input_of(const lowbit_geometry& geometry, bool kernel_order);

}  // namespace lowbit::conv
