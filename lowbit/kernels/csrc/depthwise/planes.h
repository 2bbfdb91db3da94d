// Layouts of a depthwise convolution's tensors as planes, and where the taps read in them; depthwise.h
// explains planes.
#pragma once
#include "depthwise/plane_kernels.h"
#include "gemm/gemm.h"

#include <cstring>
#include <vector>

namespace lowbit::depthwise {

constexpr int64_t kPlane = 4096;  // pixels that are processed together: with their sums, L1 and L2 hold them

inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

inline int64_t magnitude(const lowbit_operand& o) { return max_of(1, max_of(o.highest, -int64_t(o.lowest))); }

// Products that an accumulator with the largest value `largest` holds.
inline int64_t max_products(const lowbit_operand& a, const lowbit_operand& b, int64_t largest) {
    return largest / (magnitude(a) * magnitude(b));
}

inline int16_t value(const lowbit_operand& o, int64_t at) {
    const uint8_t byte = static_cast<const uint8_t*>(o.integers)[at];
    return o.lowest < 0 ? int8_t(byte) : byte;
}

// One axis, height or width. Tap k reads plane `phase(k)`, `shift(k)` elements further.
struct Axis {
    int64_t image, result, kernel, stride, dilation, before;

    int64_t phase(int64_t k) const { return k * dilation % stride; }
    int64_t shift(int64_t k) const { return k * dilation / stride; }
    int64_t reach() const { return shift(kernel - 1); }
};

struct Shape {
    lowbit_geometry g;
    Axis h, w;
    int64_t taps, multiplier;

    explicit Shape(const lowbit_geometry& geometry) : g(geometry) {
        h = {g.height, 0, g.kernel_h, g.stride_h, g.dilation_h, g.pad_top};
        w = {g.width, 0, g.kernel_w, g.stride_w, g.dilation_w, g.pad_left};
        h.result =
            (g.height + g.pad_top + g.pad_bottom - g.dilation_h * (g.kernel_h - 1) - 1) / g.stride_h + 1;
        w.result =
            (g.width + g.pad_left + g.pad_right - g.dilation_w * (g.kernel_w - 1) - 1) / g.stride_w + 1;
        taps = g.kernel_h * g.kernel_w;
        multiplier = g.outputs / g.channels;
    }
    int64_t x_plane() const { return h.image * w.image; }
    int64_t y_plane() const { return h.result * w.result; }
};

// The end of a tensor.
inline const uint8_t* end_of(const lowbit_operand& o, int64_t batch, int64_t channels, int64_t plane) {
    return static_cast<const uint8_t*>(o.integers) + batch * channels * plane;
}

inline const uint8_t* plane_of(const lowbit_operand& o, int64_t n, int64_t channels, int64_t c,
                               int64_t plane) {
    return static_cast<const uint8_t*>(o.integers) + (n * channels + c) * plane;
}

// The input's planes, one per phase of the strides: as large as the result plus what taps reach beyond it.
struct InputPlanes {
    const Shape& s;
    int64_t rows, columns;

    explicit InputPlanes(const Shape& shape)
        : s(shape), rows(s.h.result + s.h.reach()), columns(s.w.result + s.w.reach()) {}

    int64_t size() const { return rows * columns; }
    int64_t elements(int64_t images) const {
        return s.h.stride * s.w.stride * images * size() + s.h.reach() * columns + s.w.reach() + kStep;
    }
    void offsets(int64_t images, int64_t* out) const {
        for (int64_t kh = 0; kh < s.h.kernel; ++kh) {
            for (int64_t kw = 0; kw < s.w.kernel; ++kw) {
                const int64_t which = s.h.phase(kh) * s.w.stride + s.w.phase(kw);
                *out++ = which * images * size() + s.h.shift(kh) * columns + s.w.shift(kw);
            }
        }
    }
    void pack(const Kernels& kernels, const lowbit_operand& x, int64_t n, int64_t images, int64_t c,
              int16_t* out) const {
        const uint8_t* from = plane_of(x, n, s.g.channels, c, s.x_plane());
        const uint8_t* end = end_of(x, s.g.batch, s.g.channels, s.x_plane());
        memset(out, 0, elements(images) * sizeof *out);
        int16_t* to = out;
        for (int64_t i = 0; i < s.h.stride; ++i) {
            for (int64_t j = 0; j < s.w.stride; ++j, to += images * size()) {
                const View view = {s.h.image,  s.w.image,  i - s.h.before, j - s.w.before,
                                   s.h.stride, s.w.stride, rows,           columns};
                kernels.pack(from, s.g.channels * s.x_plane(), images, end, view, x.lowest < 0, to);
            }
        }
    }
};

// The output gradient's planes, one per output of a channel: as large as a phase of the input, with zeros in
// front of the first row and column for the taps that reach before them.
struct GradientPlanes {
    const Shape& s;
    int64_t rows, columns;

    explicit GradientPlanes(const Shape& shape) : s(shape), rows(plane_size(s.h)), columns(plane_size(s.w)) {}

    static int64_t plane_size(const Axis& a) {
        return a.reach() + max_of(a.result, (a.before + a.image - 1) / a.stride + 1);
    }
    int64_t size() const { return rows * columns; }
    int64_t slack() const { return s.h.reach() * columns + s.w.reach() + kStep; }

    void pack(const Kernels& kernels, const lowbit_operand& dy, int64_t n, int64_t images, int64_t c,
              int16_t* out) const {
        const View view = {s.h.result, s.w.result, -s.h.reach(), -s.w.reach(), 1, 1, rows, columns};
        const uint8_t* end = end_of(dy, s.g.batch, s.g.outputs, s.y_plane());
        memset(out, 0, (s.multiplier * images * size() + slack()) * sizeof *out);
        for (int64_t m = 0; m < s.multiplier; ++m, out += images * size()) {
            const uint8_t* from = plane_of(dy, n, s.g.outputs, c * s.multiplier + m, s.y_plane());
            kernels.pack(from, s.g.outputs * s.y_plane(), images, end, view, dy.lowest < 0, out);
        }
    }

    // The scales of the pixels of some images, laid out like a plane.
    void expand_scales(const lowbit_operand& dy, int64_t n, int64_t images, float* out) const {
        for (int64_t i = 0; i < images * size() + slack(); ++i) out[i] = 0;
        for (int64_t row = 0; row < images * s.h.result; ++row) {
            const int64_t image = row / s.h.result, p = row % s.h.result;
            const float* from = dy.scale + (n + image) * dy.of_n + p * s.w.result * dy.of_pixel;
            float* to = out + image * size() + (p + s.h.reach()) * columns + s.w.reach();
            for (int64_t q = 0; q < s.w.result; ++q) to[q] = from[q * dy.of_pixel];
        }
    }

    // call(tap, offset) for the taps of phase (i, j), in the kernel's order.
    template <class Call>
    void each_tap(int64_t i, int64_t j, Call call) const {
        for (int64_t kh = 0; kh < s.h.kernel; ++kh) {
            for (int64_t kw = 0; kw < s.w.kernel; ++kw) {
                if (s.h.phase(kh) != i || s.w.phase(kw) != j) continue;
                call(kh * s.w.kernel + kw,
                     (s.h.reach() - s.h.shift(kh)) * columns + s.w.reach() - s.w.shift(kw));
            }
        }
    }

    OutputView target(int64_t i, int64_t j) const {
        return {rows - s.h.reach(), columns,        s.h.image,  s.w.image,
                i - s.h.before,     j - s.w.before, s.h.stride, s.w.stride};
    }
};

// Offsets and weights of a correlation.
struct Taps {
    std::vector<int64_t> offsets;
    std::vector<int16_t> weights;

    void clear() {
        offsets.clear();
        weights.clear();
    }
    void add(int64_t offset, int16_t weight) {
        offsets.push_back(offset);
        weights.push_back(weight);
    }
    void correlate(const Kernels& kernels, const int16_t* plane, int64_t budget, int64_t count,
                   int32_t* sums) const {
        kernels.correlate(plane, offsets.data(), weights.data(), int64_t(offsets.size()), budget, count,
                          sums);
    }
};

inline int64_t images_per_pass(int64_t plane, int64_t batch) {
    const int64_t images = max_of(1, kPlane / plane);
    return images < batch ? images : batch;
}

// Size of a result buffer: kernels write whole steps, and readers read eight at a time.
inline int64_t result_elements(int64_t count) { return count + 2 * kStep; }

}  // namespace lowbit::depthwise
