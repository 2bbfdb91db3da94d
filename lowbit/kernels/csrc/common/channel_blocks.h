// Loops over a tensor [outer, channels, inner] with one scale per channel: element (o, c, i) is at
// (o * channels + c) * inner + i. A tensor with one scale is [1, 1, size].
//
// Blocks of the tensor go to threads. Sums per channel do not depend on the number of threads: a block holds
// whole channels, or, of a tensor with one channel, a piece of fixed size, and the pieces are added in order.
// Inside a block, terms go to 16 partial sums by their position, which every instruction set can do alike.
#pragma once
#include "common/cpu.h"
#include "common/grouped_axes.h"

struct lowbit_layout {
    int64_t outer, channels, inner;
};

namespace lowbit {

constexpr int kLanes = 16;    // partial sums
constexpr int kBlock = 1024;  // terms that are computed before they are added: the L1 cache holds them

// A part of the tensor: element (o, c, i) is at (o * stride + c) * inner + i.
struct ChannelBlock {
    int64_t outer, channels, inner, stride;
};

// A quarter of the partial sums: one AVX2 register.
typedef float Floats __attribute__((vector_size(4 * sizeof(float))));
typedef double Doubles __attribute__((vector_size(4 * sizeof(double))));

// Sixteen partial sums; the term at position i goes to sum i mod 16.
struct PartialSums {
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
        const Doubles convert_all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        return (convert_all[0] + convert_all[1]) + (convert_all[2] + convert_all[3]);
    }

  private:
    // Written out: of __builtin_convertvector, g++ makes two halves.
    static LOWBIT_INLINE void add_four(Doubles& sum, const float* terms) {
        sum += Doubles{terms[0], terms[1], terms[2], terms[3]};
    }
};

// of(channel)(index) for every element; of(channel) prepares what a channel's elements share.
template <class Of>
LOWBIT_INLINE void for_each_element(ChannelBlock block, Of of) {
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

// The same, with sums[c] = the sum of what of(c)(index) returns; at most kBlock channels.
template <class Of>
LOWBIT_INLINE void for_each_element_and_sum(ChannelBlock block, double* sums, Of of) {
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
            PartialSums sum;
            for (int64_t first = 0; first < block.inner; first += kBlock) {
                const int64_t left = block.inner - first, count = left < kBlock ? left : kBlock;
                for (int64_t i = 0; i < count; ++i) terms[i] = each(start + first + i);
                sum.add(terms, count);
            }
            sums[c] += sum.total();
        }
    }
}

constexpr int64_t kPiece = 1 << 16;  // elements of a tensor with one channel per piece
constexpr int64_t kChannelStep =
    64;  // channels per step where inner is 1, so that reads use whole cache lines

// of(block, its first element, its first channel) for blocks that cover the tensor, in parallel.
template <class Of>
void for_each_channel_block(lowbit_layout layout, const Of& of) {
    const int64_t channels = layout.channels, inner = layout.inner;
    if (layout.outer > 1) {
        parallel_ranges(layout.outer, channels * inner, [&](int64_t first, int64_t last) {
            of(ChannelBlock{last - first, channels, inner, channels}, first * channels * inner, 0);
        });
    } else if (channels > 1) {
        parallel_ranges(channels, inner, [&](int64_t first, int64_t last) {
            of(ChannelBlock{1, last - first, inner, channels}, first * inner, first);
        });
    } else {
        parallel_ranges((inner + kBlock - 1) / kBlock, kBlock, [&](int64_t first, int64_t last) {
            const int64_t at = first * kBlock, end = last * kBlock < inner ? last * kBlock : inner;
            of(ChannelBlock{1, 1, end - at, 1}, at, 0);
        });
    }
}

// of(block, its first element, its first channel, its sums or null). With `sums`, totals per channel are
// written there.
template <class Of>
void for_each_channel_block(lowbit_layout layout, float* sums, const Of& of) {
    if (!sums)
        return for_each_channel_block(
            layout, [&](ChannelBlock block, int64_t at, int64_t c) { of(block, at, c, nullptr); });
    const int64_t channels = layout.channels, inner = layout.inner;
    if (channels > 1) {
        const int64_t step = inner == 1 ? kChannelStep : 1;
        parallel_ranges((channels + step - 1) / step, step * layout.outer * inner,
                        [&](int64_t first, int64_t last) {
                            const int64_t end = last * step < channels ? last * step : channels;
                            double totals[kBlock];
                            for (int64_t c = first * step; c < end; c += kBlock) {
                                const int64_t count = end - c < kBlock ? end - c : kBlock;
                                of(ChannelBlock{layout.outer, count, inner, channels}, c * inner, c, totals);
                                for (int64_t i = 0; i < count; ++i) sums[c + i] = float(totals[i]);
                            }
                        });
        return;
    }
    double total = 0;
    const int64_t elements = layout.outer * inner, pieces = (elements + kPiece - 1) / kPiece;
    for (int64_t done = 0; done < pieces; done += kBlock) {
        const int64_t now = pieces - done < kBlock ? pieces - done : kBlock;
        double totals[kBlock];
        parallel_for(now, [&](int64_t piece) {
            const int64_t at = (done + piece) * kPiece, left = elements - at;
            of(ChannelBlock{1, 1, left < kPiece ? left : kPiece, 1}, at, 0, totals + piece);
        });
        for (int64_t piece = 0; piece < now; ++piece) total += totals[piece];
    }
    *sums = float(total);
}

}  // namespace lowbit
