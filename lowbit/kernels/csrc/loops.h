// The ways through a tensor [outer, channels, inner]: along rows that share a scale, or, when inner is 1,
// across channels; and the sums, in an order that depends on nothing but the layout.
#pragma once
#include "kernels.h"

// Inlined into functions that are compiled for one instruction set each; see variants.cpp.
#define LOWBIT_INLINE inline __attribute__((always_inline))
#define LOWBIT_INLINE_LAMBDA __attribute__((always_inline))

namespace lowbit {

constexpr int kLanes = 16;    // partial sums; what fits the widest registers twice over
constexpr int kBlock = 1024;  // terms between computing and adding up: they stay in the first cache

typedef float Floats __attribute__((vector_size(4 * kLanes / 2)));
typedef double Doubles __attribute__((vector_size(8 * kLanes / 2)));

// Adds terms to 16 partial sums, the term at place i to sum i mod 16.
struct Sum {
    Doubles low = {}, high = {};

    LOWBIT_INLINE void add(const float* terms, int64_t count) {
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) {
            Floats first, second;
            __builtin_memcpy(&first, terms + i, sizeof first);
            __builtin_memcpy(&second, terms + i + kLanes / 2, sizeof second);
            low += __builtin_convertvector(first, Doubles);
            high += __builtin_convertvector(second, Doubles);
        }
        for (int lane = 0; i < count; ++i, ++lane) {
            if (lane < kLanes / 2) {
                low[lane] += terms[i];
            } else {
                high[lane - kLanes / 2] += terms[i];
            }
        }
    }

    LOWBIT_INLINE double total() const {
        Doubles both = low + high;
        double sum = 0;
        for (int lane = 0; lane < kLanes / 2; ++lane) sum += both[lane];
        return sum;
    }
};

// of(channel)(place) for every element: `of` gets ready what a channel's elements have in common.
template <class Of>
LOWBIT_INLINE void visit(lowbit_layout layout, Of of) {
    if (layout.inner == 1) {
        for (int64_t o = 0; o < layout.outer; ++o) {
            for (int64_t c = 0; c < layout.channels; ++c) of(c)(o * layout.channels + c);
        }
        return;
    }
    for (int64_t o = 0; o < layout.outer; ++o) {
        for (int64_t c = 0; c < layout.channels; ++c) {
            const auto each = of(c);
            const int64_t start = (o * layout.channels + c) * layout.inner;
            for (int64_t i = 0; i < layout.inner; ++i) each(start + i);
        }
    }
}

// The same, and sums[c] = the sum of what of(c)(place) returns.
template <class Of>
LOWBIT_INLINE void visit_and_sum(lowbit_layout layout, float* sums, Of of) {
    float terms[kBlock];
    if (layout.inner == 1) {
        for (int64_t first = 0; first < layout.channels; first += kBlock) {
            const int64_t left = layout.channels - first, count = left < kBlock ? left : kBlock;
            double totals[kBlock];
            for (int64_t c = 0; c < count; ++c) totals[c] = 0;
            for (int64_t o = 0; o < layout.outer; ++o) {
                const int64_t start = o * layout.channels + first;
                for (int64_t c = 0; c < count; ++c) terms[c] = of(first + c)(start + c);
                for (int64_t c = 0; c < count; ++c) totals[c] += terms[c];
            }
            for (int64_t c = 0; c < count; ++c) sums[first + c] = float(totals[c]);
        }
        return;
    }
    for (int64_t c = 0; c < layout.channels; ++c) {
        const auto each = of(c);
        double total = 0;
        for (int64_t o = 0; o < layout.outer; ++o) {
            const int64_t start = (o * layout.channels + c) * layout.inner;
            Sum sum;
            for (int64_t first = 0; first < layout.inner; first += kBlock) {
                const int64_t left = layout.inner - first, count = left < kBlock ? left : kBlock;
                for (int64_t i = 0; i < count; ++i) terms[i] = each(start + first + i);
                sum.add(terms, count);
            }
            total += sum.total();
        }
        sums[c] = float(total);
    }
}

}  // namespace lowbit
