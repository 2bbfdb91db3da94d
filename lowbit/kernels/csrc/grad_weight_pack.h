// Packing for the weight's gradient: what grad_weight_plan.h describes.
// Inlined into functions that are compiled for one instruction set each; see grad_weight.cpp.
#pragma once
#include "grad_weight_plan.h"
#include "loops.h"

#include <cstring>

namespace lowbit::weight {

constexpr int64_t kPart = 512;  // words that are prepared before they change places: 16 rows are 32 KB

// How one integer is packed: bytes get a shift added (what bits they have does not matter), 16 bits are the value.
template <class T, bool kSigned>
LOWBIT_INLINE T packed(uint8_t byte, int32_t shift) {
    if (sizeof(T) == 1) return T(byte + shift);
    return kSigned ? T(int8_t(byte)) : T(byte);
}

// to[i * images + image] = from[image][i * stride]
template <class T, bool kSigned, int kImages>
LOWBIT_INLINE void interleave(T* __restrict to, const uint8_t* const* from, int64_t count, int64_t stride,
                              int32_t shift) {
    const uint8_t* a = from[0];
    const uint8_t* b = from[kImages > 1 ? 1 : 0];
    const uint8_t* c = from[kImages > 2 ? 2 : 0];
    const uint8_t* d = from[kImages > 2 ? 3 : 0];
    const auto all = [=](int64_t step) LOWBIT_INLINE_LAMBDA {
        for (int64_t i = 0; i < count; ++i) {
            to[i * kImages] = packed<T, kSigned>(a[i * step], shift);
            if (kImages > 1) to[i * kImages + 1] = packed<T, kSigned>(b[i * step], shift);
            if (kImages > 2) to[i * kImages + 2] = packed<T, kSigned>(c[i * step], shift);
            if (kImages > 2) to[i * kImages + 3] = packed<T, kSigned>(d[i * step], shift);
        }
    };
    if (stride == 1) {
        all(1);
    } else {
        all(stride);
    }
}

template <class T, bool kSigned, int kImages>
LOWBIT_INLINE void pack_x_as(const WeightPlan& plan, const uint8_t* x, uint8_t* out) {
    const lowbit_geometry& g = plan.g;
    const int64_t plane = g.height * g.width, columns = plan.columns();
    for (int64_t c = 0; c < g.channels; ++c) {
        for (int64_t set = 0; set < plan.sets; ++set) {
            const uint8_t* from[kImages];
            for (int64_t image = 0; image < kImages; ++image) {
                const int64_t n = set * kImages + image;
                from[image] = x + ((n < g.batch ? n : 0) * g.channels + c) * plane;
            }
            for (int64_t row = 0; row < plan.rows; ++row) {
                if (!plan.uses_row(row)) continue;
                const int64_t h = row - g.pad_top;
                for (int64_t phase = 0; phase < g.stride_w; ++phase) {
                    if (!plan.uses_phase(phase)) continue;
                    T* to = reinterpret_cast<T*>(out + c * plan.channel_bytes + set * plan.set_bytes +
                                                 row * plan.row_bytes + phase * plan.phase_bytes);
                    // Columns [first, last) of this rest lie in the image.
                    int64_t first = 0, last = 0;
                    if (h >= 0 && h < g.height) {
                        const int64_t before = g.pad_left - phase;
                        first = before > 0 ? (before + g.stride_w - 1) / g.stride_w : 0;
                        const int64_t end = g.width + before;  // of the image, in columns of the padded row
                        last = end > 0 ? (end + g.stride_w - 1) / g.stride_w : 0;
                        if (last > columns) last = columns;
                        if (first > last) first = last;
                    }
                    for (int64_t i = 0; i < first * kImages; ++i) to[i] = T(plan.zero);
                    if (first < last) {
                        const uint8_t* start[kImages];
                        const int64_t offset = h * g.width + first * g.stride_w + phase - g.pad_left;
                        for (int image = 0; image < kImages; ++image) start[image] = from[image] + offset;
                        interleave<T, kSigned, kImages>(to + first * kImages, start, last - first, g.stride_w,
                                                       plan.zero);
                    }
                    for (int64_t i = last * kImages; i < columns * kImages; ++i) to[i] = T(plan.zero);
                }
            }
        }
    }
}

// The words of 16 outputs, `count` of them from each row, to the words of each place side by side.
LOWBIT_INLINE void side_by_side(const uint8_t* const* rows, int64_t count, uint8_t* out) {
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t o = 0; o < kPanel; ++o) memcpy(out + (i * kPanel + o) * kWord, rows[o] + i * kWord, kWord);
    }
}

template <class T, bool kSigned, int kImages>
LOWBIT_INLINE void pack_dy_as(const WeightPlan& plan, const uint8_t* dy, uint8_t* out) {
    constexpr int64_t kWhole = kWord / sizeof(T);  // integers in a word; kImages is 1 where they are pixels
    const lowbit_geometry& g = plan.g;
    const int64_t plane = plan.out_h * plan.out_w;
    // Rows that end with a word follow each other as one.
    const bool one = kImages > 1 || plan.out_w % kWhole == 0;
    const int64_t lines = one ? 1 : plan.out_h, length = one ? plane : plan.out_w;
    constexpr int64_t kPixels = kPart * kWhole / kImages;  // of one part
    alignas(64) uint8_t words[kPanel][kPart * kWord];
    uint8_t zeros[kPixels] = {};
    for (int64_t panel = 0; panel < g.groups * plan.panels; ++panel) {
        const int64_t first = panel % plan.panels * kPanel;  // output of the group
        for (int64_t set = 0; set < plan.sets; ++set) {
            for (int64_t line = 0; line < lines; ++line) {
                for (int64_t start = 0; start < length; start += kPixels) {
                    const int64_t count = length - start < kPixels ? length - start : kPixels;
                    const int64_t filled = (count * kImages + kWhole - 1) / kWhole;
                    const uint8_t* rows[kPanel];
                    for (int64_t o = 0; o < kPanel; ++o) {
                        T* to = reinterpret_cast<T*>(words[o]);
                        const uint8_t* from[kImages];
                        for (int64_t image = 0; image < kImages; ++image) {
                            const int64_t n = set * kImages + image;
                            const int64_t output = panel / plan.panels * plan.group_outputs + first + o;
                            const bool there = n < g.batch && first + o < plan.group_outputs;
                            from[image] = there ? dy + (n * g.outputs + output) * plane + line * length + start : zeros;
                        }
                        interleave<T, kSigned, kImages>(to, from, count, 1, 0);
                        for (int64_t i = count * kImages; i < filled * kWhole; ++i) to[i] = 0;
                        rows[o] = words[o];
                    }
                    side_by_side(rows, filled, out);
                    out += filled * kPanel * kWord;
                }
            }
        }
    }
}

// Calls f with the type, the sign and the lanes that the plan has.
#define LOWBIT_WITH_LAYOUT(FUNCTION, PLAN, IS_SIGNED, ...)                      \
    if ((PLAN).lanes == 4) {                                                    \
        if ((PLAN).by_images) {                                                 \
            FUNCTION<uint8_t, false, 4>(PLAN, __VA_ARGS__);                     \
        } else {                                                                \
            FUNCTION<uint8_t, false, 1>(PLAN, __VA_ARGS__);                     \
        }                                                                       \
    } else if ((PLAN).by_images) {                                              \
        if (IS_SIGNED) {                                                        \
            FUNCTION<int16_t, true, 2>(PLAN, __VA_ARGS__);                      \
        } else {                                                                \
            FUNCTION<int16_t, false, 2>(PLAN, __VA_ARGS__);                     \
        }                                                                       \
    } else if (IS_SIGNED) {                                                     \
        FUNCTION<int16_t, true, 1>(PLAN, __VA_ARGS__);                          \
    } else {                                                                    \
        FUNCTION<int16_t, false, 1>(PLAN, __VA_ARGS__);                         \
    }

LOWBIT_INLINE void pack_x(const WeightPlan& plan, const uint8_t* x, uint8_t* out) {
    LOWBIT_WITH_LAYOUT(pack_x_as, plan, plan.x_signed, x, out)
}

LOWBIT_INLINE void pack_dy(const WeightPlan& plan, const uint8_t* dy, uint8_t* out) {
    LOWBIT_WITH_LAYOUT(pack_dy_as, plan, plan.dy_signed, dy, out)
}

}  // namespace lowbit::weight
