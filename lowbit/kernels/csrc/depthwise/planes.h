// Layouts of the tensors of a depthwise convolution as planes, and where the taps read in them.
#pragma once
#include "depthwise/plane_kernels.h"
#include "gemm/gemm.h"

namespace lowbit::depthwise {

constexpr int64_t kPlane = 4096;  // pixels that are processed together: with their sums, L1 and L2 hold them

inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

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
    // call(view, first element) for every phase.
    template <class Call>
    void each_phase(int64_t images, Call call) const {
        int64_t first = 0;
        for (int64_t i = 0; i < s.h.stride; ++i) {
            for (int64_t j = 0; j < s.w.stride; ++j, first += images * size()) {
                call(View{s.h.image, s.w.image, i - s.h.before, j - s.w.before, s.h.stride, s.w.stride, rows,
                          columns},
                     first);
            }
        }
    }
    // The output's, or its gradient's, plane in the same layout; taps of the input's planes are added to it.
    View of_output() const { return {s.h.result, s.w.result, 0, 0, 1, 1, rows, columns}; }
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
    View view() const { return {s.h.result, s.w.result, -s.h.reach(), -s.w.reach(), 1, 1, rows, columns}; }

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

inline int64_t images_per_pass(int64_t plane, int64_t batch) {
    const int64_t images = max_of(1, kPlane / plane);
    return images < batch ? images : batch;
}

// Size of a result buffer: kernels write whole steps, and readers read eight at a time.
inline int64_t result_elements(int64_t count) { return count + 2 * kStep; }

}  // namespace lowbit::depthwise
