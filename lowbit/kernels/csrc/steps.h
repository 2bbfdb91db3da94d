// How a sum is added up: its steps in segments, and how many fit into sums of 16 and of 32 bits.
#pragma once
#include "convolution.h"
#include "tiles.h"

#include <algorithm>

namespace lowbit::conv {

// What is added up in int32 in one go: almost always everything.
struct Span {
    int64_t first_step;  // counted over the whole kernel
    std::vector<Segment> segments;
};

// One sum per pixel and channel, over taps that lie behind each other in a panel.
struct Sum {
    int64_t first_tap, taps;
    std::vector<Span> spans;
};

struct Limits {
    int64_t int16, int32;  // steps; 0 for int16 where there are no narrow sums
};

// Steps whose sums stay in int32: each adds at most `products` products of the largest magnitudes, and what a
// sum begins with (-offset * the sum of weights) only takes back what the offset of the source has added.
inline int64_t steps_in_int32(int64_t largest_source, int64_t largest_weight, int64_t products) {
    return INT32_MAX / std::max<int64_t>(1, products * largest_source * largest_weight);
}

// The sum over taps [first, last) of a part whose first tap is the kernel's `before`th in the panel.
inline Sum sum_over(const Part& part, int64_t first, int64_t last, int64_t before, int64_t row_bytes,
                    int64_t pixel_bytes, Limits limits) {
    Sum sum{before + first, last - first, {}};
    const int64_t steps_of_tap = pixel_bytes / 4;
    int64_t step = (before + first) * steps_of_tap, narrow = 0, wide = 0;
    sum.spans.push_back({step, {}});
    for (int64_t t = first; t < last; t++) {
        int64_t offset = part.taps[t].row * row_bytes + part.taps[t].column * pixel_bytes;
        for (int64_t left = steps_of_tap; left;) {
            if (wide == limits.int32) {
                sum.spans.push_back({step, {}});
                narrow = wide = 0;
            }
            std::vector<Segment>& segments = sum.spans.back().segments;
            int64_t steps = std::min(left, limits.int32 - wide);
            if (limits.int16) steps = std::min(steps, limits.int16 - narrow);
            const bool goes_on = !segments.empty() && !segments.back().widen &&
                                 segments.back().offset + 4 * segments.back().steps == offset;
            if (goes_on) {
                segments.back().steps += steps;
            } else {
                segments.push_back({offset, steps, false});
            }
            left -= steps, step += steps, narrow += steps, wide += steps;
            offset += 4 * steps;
            if (limits.int16 && narrow == limits.int16) {
                segments.back().widen = true;
                narrow = 0;
            }
        }
    }
    for (Span& span : sum.spans) {
        if (limits.int16 && !span.segments.empty()) span.segments.back().widen = true;
    }
    return sum;
}

}  // namespace lowbit::conv
