// The ways through a tensor [outer, channels, inner], or a block of it: along rows that share a scale, or, when
// inner is 1, across channels; and the sums, in an order that depends on nothing but the layout.
#pragma once
#include "kernels.h"

// Inlined into functions that are compiled for one instruction set each; see variants.cpp.
#define LOWBIT_INLINE inline __attribute__((always_inline))
#define LOWBIT_INLINE_LAMBDA __attribute__((always_inline))

// In front of a loop over an array that is to be in registers: it must be unrolled early.
#if defined(__clang__)
#define LOWBIT_UNROLLED _Pragma("unroll")
#else
#define LOWBIT_UNROLLED _Pragma("GCC unroll 16")
#endif

namespace lowbit {

constexpr int kLanes = 16;    // partial sums
constexpr int kBlock = 1024;  // terms between computing and adding up: they stay in the first cache

// Element (o, c, i) lies at (o * stride + c) * inner + i.
struct Block {
    int64_t outer, channels, inner, stride;
};

// A quarter of the partial sums: what AVX2 holds in one register.
typedef float Floats __attribute__((vector_size(4 * sizeof(float))));
typedef double Doubles __attribute__((vector_size(4 * sizeof(double))));

// Adds terms to 16 partial sums, the term at place i to sum i mod 16.
struct Sum {
    Doubles parts[kLanes / 4] = {};

    LOWBIT_INLINE void add(const float* terms, int64_t count) {
        Doubles a = parts[0], b = parts[1], c = parts[2], d = parts[3];
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) {
            add_four(a, terms + i);
            add_four(b, terms + i + 4);
            add_four(c, terms + i + 8);
            add_four(d, terms + i + 12);
        }
        parts[0] = a, parts[1] = b, parts[2] = c, parts[3] = d;
        for (int lane = 0; i < count; ++i, ++lane) parts[lane / 4][lane % 4] += terms[i];
    }

    LOWBIT_INLINE double total() const {
        const Doubles all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        return (all[0] + all[1]) + (all[2] + all[3]);
    }

  private:
    static LOWBIT_INLINE void add_four(Doubles& sum, const float* terms) {
        Floats four;
        __builtin_memcpy(&four, terms, sizeof four);
        sum += __builtin_convertvector(four, Doubles);
    }
};

// of(channel)(place) for every element: `of` gets ready what a channel's elements have in common.
template <class Of>
LOWBIT_INLINE void visit(Block block, Of of) {
    if (block.inner == 1) {
        for (int64_t o = 0; o < block.outer; ++o) {
            for (int64_t c = 0; c < block.channels; ++c) of(c)(o * block.stride + c);
        }
        return;
    }
    for (int64_t o = 0; o < block.outer; ++o) {
        for (int64_t c = 0; c < block.channels; ++c) {
            const auto each = of(c);
            const int64_t start = (o * block.stride + c) * block.inner;
            for (int64_t i = 0; i < block.inner; ++i) each(start + i);
        }
    }
}

// The same, and sums[c] = the sum of what of(c)(place) returns; of up to kBlock channels.
template <class Of>
LOWBIT_INLINE void visit_and_sum(Block block, double* sums, Of of) {
    float terms[kBlock];
    for (int64_t c = 0; c < block.channels; ++c) sums[c] = 0;
    if (block.inner == 1) {
        for (int64_t o = 0; o < block.outer; ++o) {
            const int64_t start = o * block.stride;
            for (int64_t c = 0; c < block.channels; ++c) terms[c] = of(c)(start + c);
            for (int64_t c = 0; c < block.channels; ++c) sums[c] += terms[c];
        }
        return;
    }
    for (int64_t c = 0; c < block.channels; ++c) {
        const auto each = of(c);
        for (int64_t o = 0; o < block.outer; ++o) {
            const int64_t start = (o * block.stride + c) * block.inner;
            Sum sum;
            for (int64_t first = 0; first < block.inner; first += kBlock) {
                const int64_t left = block.inner - first, count = left < kBlock ? left : kBlock;
                for (int64_t i = 0; i < count; ++i) terms[i] = each(start + first + i);
                sum.add(terms, count);
            }
            sums[c] += sum.total();
        }
    }
}

}  // namespace lowbit
