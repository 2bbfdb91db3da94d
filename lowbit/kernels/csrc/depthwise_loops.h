// The loops of the depthwise products, over planes of 16-bit integers.
//
// A plane is a channel of some images, row after row, with what the taps see outside of the image as zeros; with
// a stride there is one plane for every rest of row and column. So one tap of all pixels is the same plane, some
// integers further: rows need no treatment of their own, and pixels that lie beside the result are worked out
// and left out.
// Inlined into functions that are compiled for one instruction set each; see depthwise_variants.cpp.
#pragma once
#include "loops.h"

#include <cstring>

namespace lowbit::depthwise {

constexpr int64_t kStep = 32;  // pixels that may be worked out in one go: planes have as many more at their end

// Where the pixels of a plane come from: (row, column) is the image's (first_row + row * step_h, ...), or 0.
struct View {
    int64_t height, width;  // of the image
    int64_t first_row, first_column, step_h, step_w;
    int64_t rows, columns;  // of the plane
};

template <bool kSigned>
LOWBIT_INLINE void pack_as(const uint8_t* image, int64_t image_bytes, int64_t images, const View& view,
                           int16_t* __restrict to) {
    // Columns [first, last) lie in the image.
    const int64_t before = -view.first_column, end = view.width + before;
    int64_t first = before > 0 ? (before + view.step_w - 1) / view.step_w : 0;
    int64_t last = end > 0 ? (end + view.step_w - 1) / view.step_w : 0;
    last = last < view.columns ? last : view.columns;
    first = first < last ? first : last;
    for (int64_t n = 0; n < images; ++n) {
        for (int64_t row = 0; row < view.rows; ++row, to += view.columns) {
            const int64_t h = view.first_row + row * view.step_h;
            if (h < 0 || h >= view.height) {
                memset(to, 0, size_t(view.columns) * sizeof *to);
                continue;
            }
            const uint8_t* from = image + n * image_bytes + h * view.width + view.first_column;
            for (int64_t i = 0; i < first; ++i) to[i] = 0;
            if (view.step_w == 1) {
                for (int64_t i = first; i < last; ++i) to[i] = kSigned ? int8_t(from[i]) : from[i];
            } else {
                for (int64_t i = first; i < last; ++i) {
                    const uint8_t byte = from[i * view.step_w];
                    to[i] = kSigned ? int8_t(byte) : byte;
                }
            }
            for (int64_t i = last; i < view.columns; ++i) to[i] = 0;
        }
    }
}

LOWBIT_INLINE void pack(const uint8_t* image, int64_t image_bytes, int64_t images, const View& view, bool is_signed,
                        int16_t* to) {
    if (is_signed) {
        pack_as<true>(image, image_bytes, images, view, to);
    } else {
        pack_as<false>(image, image_bytes, images, view, to);
    }
}

// sums[i] = the sum over taps of plane[offsets[tap] + i] * weights[tap].
LOWBIT_INLINE void correlate(const int16_t* plane, const int64_t* offsets, const int16_t* weights, int64_t taps,
                             int64_t count, int32_t* __restrict sums) {
    for (int64_t start = 0; start < count; start += kBlock) {
        const int64_t now = count - start < kBlock ? count - start : kBlock;
        for (int64_t i = 0; i < now; ++i) sums[start + i] = 0;
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int16_t* from = plane + offsets[tap] + start;
            for (int64_t i = 0; i < now; ++i) sums[start + i] += int32_t(from[i]) * int32_t(weights[tap]);
        }
    }
}

// values[i] += fp32(sums[i]) * scale[i]
LOWBIT_INLINE void add_scaled(const int32_t* sums, const float* scale, int64_t count, float* __restrict values) {
    for (int64_t i = 0; i < count; ++i) values[i] += float(sums[i]) * scale[i];
}

// The sum of a[i] * b[i]; the caller sees to it that 32 bits hold it, in whatever order.
LOWBIT_INLINE int32_t dot(const int16_t* a, const int16_t* b, int64_t count) {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += int32_t(a[i]) * int32_t(b[i]);
    return sum;
}

// Which pixels of a plane's results are wanted, and where they go: row r to image row first_row + r * apart_h.
struct Target {
    int64_t rows, columns;  // of the plane
    int64_t height, width;  // of the image
    int64_t first_row, first_column, apart_h, apart_w;
};

// row(from, count, to, apart) for the wanted part of every row of one image.
template <class T, class To, class Row>
LOWBIT_INLINE void each_row(const T* from, const Target& t, To* to, Row row) {
    const int64_t before = -t.first_column, end = t.width + before;
    const int64_t first = before > 0 ? (before + t.apart_w - 1) / t.apart_w : 0;
    int64_t last = end > 0 ? (end + t.apart_w - 1) / t.apart_w : 0;
    last = last < t.columns ? last : t.columns;
    if (first >= last) return;
    for (int64_t r = 0; r < t.rows; ++r) {
        const int64_t h = t.first_row + r * t.apart_h;
        if (h < 0 || h >= t.height) continue;
        To* start = to + h * t.width + t.first_column + first * t.apart_w;
        if (t.apart_w == 1) {
            row(from + r * t.columns + first, last - first, start, 1);
        } else {
            row(from + r * t.columns + first, last - first, start, t.apart_w);
        }
    }
}

LOWBIT_INLINE void copy_sums(const int32_t* from, const Target& target, int64_t* to) {
    each_row(from, target, to, [](const int32_t* sums, int64_t count, int64_t* out, int64_t apart) LOWBIT_INLINE_LAMBDA {
        for (int64_t i = 0; i < count; ++i) out[i * apart] = sums[i];
    });
}

// fp32(value) * scale, plus the bias where there is one.
template <class T>
LOWBIT_INLINE void finish(const T* from, const Target& target, float scale, const float* bias, float* to) {
    if (bias) {
        const float added = *bias;
        each_row(from, target, to, [=](const T* values, int64_t count, float* out, int64_t apart) LOWBIT_INLINE_LAMBDA {
            for (int64_t i = 0; i < count; ++i) out[i * apart] = float(values[i]) * scale + added;
        });
    } else {
        each_row(from, target, to, [=](const T* values, int64_t count, float* out, int64_t apart) LOWBIT_INLINE_LAMBDA {
            for (int64_t i = 0; i < count; ++i) out[i * apart] = float(values[i]) * scale;
        });
    }
}

}  // namespace lowbit::depthwise
