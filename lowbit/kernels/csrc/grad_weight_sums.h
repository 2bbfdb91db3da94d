// From exact sums to the weight's gradient. A tile's sums lie as [channels][taps][outputs], `width` outputs: here
// they get their scales, and then the weight's own order.
// Inlined into functions that are compiled for one instruction set each; see grad_weight_loops.cpp.
#pragma once
#include "grad_weight_plan.h"
#include "loops.h"

namespace lowbit::weight {

// sums[n][o] of dy's pixels, or sums[0][o] over all images.
LOWBIT_INLINE void sum_dy(const WeightPlan& plan, const uint8_t* dy, int64_t* sums) {
    const int64_t plane = plan.out_h * plan.out_w;
    for (int64_t i = 0; i < (plan.by_sample ? plan.g.batch : 1) * plan.g.outputs; ++i) sums[i] = 0;
    for (int64_t i = 0; i < plan.g.batch * plan.g.outputs; ++i) {
        const uint8_t* from = dy + i * plane;
        int64_t total = 0;
        for (int64_t start = 0; start < plane; start += kBlock) {  // a block's sum fits into 32 bits
            const int64_t end = plane - start < kBlock ? plane : start + kBlock;
            int32_t part = 0;
            if (plan.dy_signed) {
                for (int64_t at = start; at < end; ++at) part += int8_t(from[at]);
            } else {
                for (int64_t at = start; at < end; ++at) part += from[at];
            }
            total += part;
        }
        sums[plan.by_sample ? i : i % plan.g.outputs] += total;
    }
}

// wide += narrow + shift, and narrow begins anew.
LOWBIT_INLINE void empty(int32_t* __restrict narrow, int64_t* __restrict wide, const int64_t* shift, int64_t rows,
                         int64_t width) {
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t o = 0; o < width; ++o) {
            wide[row * width + o] += narrow[row * width + o] + shift[o];
            narrow[row * width + o] = 0;
        }
    }
}

// values (+)= fp32(sums + shift) * (scale_dy * scale_x), and the sums begin anew.
template <class T>
LOWBIT_INLINE void scale(T* __restrict sums, const int64_t* shift, const float* scale_dy, const float* scale_x,
                         float* __restrict values, bool add, int64_t channels, int64_t taps, int64_t width) {
    T shifts[kMostPanels * kPanel];
    float scales[kMostPanels * kPanel];
    for (int64_t o = 0; o < width; ++o) shifts[o] = T(shift[o]);
    for (int64_t c = 0; c < channels; ++c) {
        for (int64_t o = 0; o < width; ++o) scales[o] = scale_dy[o] * scale_x[c];
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t row = (c * taps + tap) * width;
            for (int64_t o = 0; o < width; ++o) {
                const float value = float(T(sums[row + o] + shifts[o])) * scales[o];
                values[row + o] = add ? values[row + o] + value : value;
                sums[row + o] = 0;
            }
        }
    }
}

// to[o][row] = from[row][o]
template <class T>
LOWBIT_INLINE void put(const T* __restrict from, int64_t rows, int64_t width, T* __restrict to, int64_t to_output,
                       int64_t outputs) {
    for (int64_t o = 0; o < outputs; ++o) {
        for (int64_t row = 0; row < rows; ++row) to[o * to_output + row] = from[row * width + o];
    }
}

}  // namespace lowbit::weight
