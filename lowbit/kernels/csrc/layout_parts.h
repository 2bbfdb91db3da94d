// A tensor [outer, channels, inner] cut into blocks for the threads. Where there are sums, blocks are of whole
// channels, or, of a single channel, of a length that depends on nothing: their sums are added up in their order.
#pragma once
#include "loops.h"
#include "parts.h"

namespace lowbit {

constexpr int64_t kPiece = 1 << 16;  // elements of a single channel
constexpr int64_t kBeside = 64;      // channels of one element each, read side by side

// of(block, where it begins, its first channel) for blocks that are the whole tensor together.
template <class Of>
void each_block(lowbit_layout layout, const Of& of) {
    const int64_t channels = layout.channels, inner = layout.inner;
    if (layout.outer > 1) {
        in_parts(layout.outer, channels * inner, [&](int64_t first, int64_t last) {
            of(Block{last - first, channels, inner, channels}, first * channels * inner, 0);
        });
    } else if (channels > 1) {
        in_parts(channels, inner, [&](int64_t first, int64_t last) {
            of(Block{1, last - first, inner, channels}, first * inner, first);
        });
    } else {
        in_parts((inner + kBlock - 1) / kBlock, kBlock, [&](int64_t first, int64_t last) {
            const int64_t at = first * kBlock, end = last * kBlock < inner ? last * kBlock : inner;
            of(Block{1, 1, end - at, 1}, at, 0);
        });
    }
}

// of(block, where it begins, its first channel, its sums or null), and all sums together where they are wanted.
template <class Of>
void each_block(lowbit_layout layout, float* sums, const Of& of) {
    if (!sums) return each_block(layout, [&](Block block, int64_t at, int64_t c) { of(block, at, c, nullptr); });
    const int64_t channels = layout.channels, inner = layout.inner;
    if (channels > 1) {
        const int64_t step = inner == 1 ? kBeside : 1;
        in_parts((channels + step - 1) / step, step * layout.outer * inner, [&](int64_t first, int64_t last) {
            const int64_t end = last * step < channels ? last * step : channels;
            double totals[kBlock];
            for (int64_t c = first * step; c < end; c += kBlock) {
                const int64_t count = end - c < kBlock ? end - c : kBlock;
                of(Block{layout.outer, count, inner, channels}, c * inner, c, totals);
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
            of(Block{1, 1, left < kPiece ? left : kPiece, 1}, at, 0, totals + piece);
        });
        for (int64_t piece = 0; piece < now; ++piece) total += totals[piece];
    }
    *sums = float(total);
}

}  // namespace lowbit
