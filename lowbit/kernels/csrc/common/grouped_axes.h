// Loops over a tensor whose scales belong to any subset of its axes, and their partition among threads.
//
// A group is the elements that share a scale. Where the last axis is shared and long, a group is a set of
// rows, each of one scale. Otherwise rows would be short, or every element of a row has its own scale: then
// the tensor is seen as a block of memory of up to 1024 positions that repeats, position by position in the
// same groups each time, so that loops over positions still vectorize.
//
// Work is divided by groups where there are enough of them, else within a group. Partial results of a divided
// group are combined by atomic operations on integers, whose order changes nothing.
#pragma once
#include "common/cpu.h"
#include "common/threads.h"

// A contiguous tensor of up to four axes (missing ones are in front, with size 1). Axis a has its own scales
// when owns[a] is not 0. Scales are contiguous, one per group, in the order of the owning axes.
struct lowbit_axes {
    int64_t sizes[4];
    int32_t owns[4];
};

namespace lowbit {

constexpr int kBlockWidth = 1024;  // positions: the L1 cache holds what is computed for each of them
// Shorter rows use periodic blocks: a sum over a row has a fixed cost at its end, an elementwise loop only
// its remainder.
constexpr int kMinRowToSum = 32, kMinRowToVisit = 256;

// The axes merged to [own0, share0, own1, share1, own2]: axes that own scales and axes that share them
// alternate.
struct GroupedAxes {
    int64_t own0 = 1, share0 = 1, own1 = 1, share1 = 1, own2 = 1;
    int64_t images;  // the first axis: of a weight, its outputs

    explicit GroupedAxes(const lowbit_axes& axes) : images(axes.sizes[0]) {
        int64_t* const sizes[5] = {&own0, &share0, &own1, &share1, &own2};
        int at = 4;
        for (int axis = 3; axis >= 0; --axis) {
            if (axes.sizes[axis] == 1) continue;
            if ((axes.owns[axis] != 0) != (at % 2 == 0)) --at;
            *sizes[at] *= axes.sizes[axis];
        }
    }

    int64_t elements() const { return own0 * share0 * own1 * share1 * own2; }
    bool has_rows(int64_t shortest) const { return own2 == 1 && share1 >= shortest; }
};

// `count` rows of one group, `stride` elements apart. A row may be several images.
struct GroupRows {
    int64_t group, at, length, count, stride;
    int64_t images = 1;
};

// The rows of a group, for tensors that have rows.
inline GroupRows rows_of_group(const GroupedAxes& grouped, int64_t group) {
    const int64_t stride = grouped.own1 * grouped.share1;
    const int64_t outer = grouped.own0 == 1 ? 0 : group / grouped.own1, inner = group - outer * grouped.own1;
    const bool is_whole = grouped.own0 * grouped.own1 == 1;
    return {group,          outer * grouped.share0 * stride + inner * grouped.share1,
            grouped.share1, grouped.share0,
            stride,         is_whole ? grouped.images : 1};
}

// A block of `width` positions that repeats `across` times next to each other (the last time with
// `last_width` positions) and `down` times at a stride. `repeat` consecutive positions belong to one group;
// after `groups` groups the first one follows again.
struct PeriodicBlock {
    int64_t group, groups, repeat;
    int64_t at, width, last_width;
    int64_t across, across_stride, down, stride;

    int64_t repeats() const { return down * across; }

    // of(start, count) for some of the repeats, of which the first `count` positions exist.
    template <class Of>
    LOWBIT_INLINE void for_each_repeat(int64_t first, int64_t last, Of of) const {
        int64_t d = first / across, a = first % across;
        for (int64_t time = first; time < last; ++time) {
            const bool ends = a + 1 == across;
            of(at + d * stride + a * across_stride, ends ? last_width : width);
            a = ends ? 0 : a + 1;
            d += ends;
        }
    }

    // out[position] = in[group - first group of the block].
    template <class T>
    LOWBIT_INLINE void broadcast(const T* in, T* out) const {
        if (repeat > 1) {
            for (int64_t g = 0, position = 0; g < groups; ++g) {
                for (int64_t end = position + repeat; position < end; ++position) out[position] = in[g];
            }
            return;
        }
        for (int64_t start = 0; start < width; start += groups) {
            for (int64_t g = 0; g < groups; ++g) out[start + g] = in[g];
        }
    }

    // The reverse: combines the values of all positions of a group; the results are the first `groups`
    // values.
    template <class T, class Combine>
    LOWBIT_INLINE void reduce(T* values, Combine combine) const {
        if (repeat > 1) {
            for (int64_t g = 0; g < groups; ++g) {
                T all = values[g * repeat];
                for (int64_t i = 1; i < repeat; ++i) {
                    all = combine(all, values[g * repeat + i]);
                }
                values[g] = all;
            }
            return;
        }
        for (int64_t start = groups; start < width; start += groups) {
            for (int64_t g = 0; g < groups; ++g) values[g] = combine(values[g], values[start + g]);
        }
    }
};

// The periodic blocks of a tensor without rows; a group is entirely in one of them.
struct PeriodicBlocks {
    const GroupedAxes& grouped;
    int64_t max_groups, across_outer;  // groups per block, and blocks next to each other

    explicit PeriodicBlocks(const GroupedAxes& of)
        : grouped(of),
          max_groups(of.own2 == 1 ? kBlockWidth / of.share1 : kBlockWidth),
          across_outer(((of.own2 == 1 ? of.own1 : of.own2) + max_groups - 1) / max_groups) {}

    int64_t count() const { return grouped.own0 * (grouped.own2 == 1 ? 1 : grouped.own1) * across_outer; }

    PeriodicBlock operator[](int64_t number) const {
        const int64_t plane = grouped.share1 * grouped.own2, stride = grouped.own1 * plane;
        const int64_t outer = number / across_outer, first = number % across_outer * max_groups;
        if (grouped.own2 == 1) {
            const int64_t left = grouped.own1 - first, groups = left < max_groups ? left : max_groups,
                          width = groups * grouped.share1;
            const int64_t at = outer * grouped.share0 * stride + first * grouped.share1;
            return {outer * grouped.own1 + first,
                    groups,
                    grouped.share1,
                    at,
                    width,
                    width,
                    1,
                    0,
                    grouped.share0,
                    stride};
        }
        const int64_t fitting = grouped.own2 < kBlockWidth ? kBlockWidth / grouped.own2 : 1;
        const int64_t abreast = fitting < grouped.share1 ? fitting : grouped.share1;
        const int64_t across = (grouped.share1 + abreast - 1) / abreast,
                      last = grouped.share1 - (across - 1) * abreast;
        const int64_t at =
            outer / grouped.own1 * grouped.share0 * stride + outer % grouped.own1 * plane + first;
        const int64_t left = grouped.own2 - first, groups = left < kBlockWidth ? left : kBlockWidth;
        return {
            outer * grouped.own2 + first, groups,         1,     at, groups * abreast, groups * last, across,
            grouped.own2 * abreast,       grouped.share0, stride};
    }
};

// A scale shared by all elements, and one per element.
struct OneScale {
    float value;
    LOWBIT_INLINE float operator[](int64_t) const { return value; }
};

struct ScaleEach {
    const float* values;
    LOWBIT_INLINE float operator[](int64_t i) const { return values[i]; }
};

constexpr int64_t kMinElements = 1 << 15;  // smaller ranges are not worth another thread
constexpr int kRangesPerThread = 8;        // so that threads finish at about the same time

// body(first, last) in parallel for ranges of `items` items with `elements` elements each.
template <class Body>
void parallel_ranges(int64_t items, int64_t elements, const Body& body) {
    if (!elements) return;
    const int64_t worth_it = elements < kMinElements ? (kMinElements + elements - 1) / elements : 1;
    const int64_t fair = items / (kRangesPerThread * lowbit_threads()),
                  step = worth_it < fair ? fair : worth_it;
    parallel_for((items + step - 1) / step, [&](int64_t part) {
        const int64_t first = part * step, left = items - first;
        body(first, first + (left < step ? left : step));
    });
}

// body(first, last) in parallel for ranges that cover `elements` elements of several images. Threads have the
// same part of every image, as in batch norm, which divides channels among them: what it wrote is near.
template <class Body>
void parallel_parts(int64_t elements, int64_t images, const Body& body) {
    constexpr int64_t kLine = 64;  // elements: threads do not write to the same cache line
    const int64_t threads = lowbit_threads(), image = elements / images;
    const int64_t length = round_up(image, kLine * threads) / threads;
    if (threads == 1 || images == 1 || elements < 2 * kMinElements) {
        return parallel_ranges(
            ceil_div(elements, kBlockWidth), kBlockWidth, [&](int64_t first, int64_t last) {
                body(first * kBlockWidth, last * kBlockWidth < elements ? last * kBlockWidth : elements);
            });
    }
    parallel_for(threads * images, [&](int64_t item) {
        const int64_t first = item / images * length, left = image - first;
        const int64_t start = item % images * image + first;
        if (left > 0) body(start, start + (left < length ? left : length));
    });
}

// of(item, split) for groups or blocks of `elements` elements. Where items are few, they come one after the
// other with split = true, and `of` divides their work among the threads.
template <class Of>
void for_each_item(int64_t items, int64_t elements, const Of& of) {
    if (lowbit_threads() > 1 && items < kRangesPerThread / 2 * lowbit_threads() && elements > kMinElements) {
        for (int64_t item = 0; item < items; ++item) of(item, true);
    } else {
        parallel_ranges(items, elements, [&](int64_t first, int64_t last) {
            for (int64_t item = first; item < last; ++item) of(item, false);
        });
    }
}

// of(rows, split) for the groups of a tensor that has rows.
template <class Of>
void for_each_group(const GroupedAxes& grouped, const Of& of) {
    for_each_item(grouped.own0 * grouped.own1, grouped.share0 * grouped.share1,
                  [&](int64_t group, bool split) { of(rows_of_group(grouped, group), split); });
}

// of(block, split) for the periodic blocks of a tensor that has not.
template <class Of>
void for_each_block(const GroupedAxes& grouped, const Of& of) {
    const PeriodicBlocks blocks(grouped);
    for_each_item(blocks.count(), grouped.elements() / blocks.count(),
                  [&](int64_t number, bool split) { of(blocks[number], split); });
}

// of(rows) for parts of a group: several rows, or pieces of a row.
template <class Of>
void for_each_part(const GroupRows& rows, bool split, const Of& of) {
    if (!split) return of(rows);
    if (rows.count == 1) {
        return parallel_parts(rows.length, rows.images, [&](int64_t first, int64_t last) {
            of(GroupRows{rows.group, rows.at + first, last - first, 1, rows.stride});
        });
    }
    const int64_t pieces = (rows.length + kMinElements - 1) / kMinElements;
    parallel_ranges(rows.count * pieces, rows.length / pieces, [&](int64_t first, int64_t last) {
        if (pieces == 1) {
            const int64_t at = rows.at + first * rows.stride;
            return of(GroupRows{rows.group, at, rows.length, last - first, rows.stride});
        }
        for (int64_t piece = first; piece < last; ++piece) {
            const int64_t begin = piece % pieces * kMinElements, left = rows.length - begin;
            const int64_t at = rows.at + piece / pieces * rows.stride + begin;
            of(GroupRows{rows.group, at, left < kMinElements ? left : kMinElements, 1, rows.stride});
        }
    });
}

// of(first, last) for ranges of the repeats of a block.
template <class Of>
void for_each_part(const PeriodicBlock& block, bool split, const Of& of) {
    if (split) return parallel_ranges(block.repeats(), block.width, of);
    of(0, block.repeats());
}

// of(start, count, scales, each) for contiguous runs that cover the tensor; `each`: every element has its own
// scale.
template <class Of>
void for_each_run(const GroupedAxes& grouped, const float* scales, const Of& of) {
    const bool has_rows = grouped.has_rows(kMinRowToVisit);
    if (!has_rows && grouped.own2 < kBlockWidth / 2) {
        for_each_block(grouped, [&](const PeriodicBlock& block, bool split) {
            float own[kBlockWidth];
            block.broadcast(scales + block.group, own);
            for_each_part(block, split, [&](int64_t first, int64_t last) {
                block.for_each_repeat(first, last,
                                      [&](int64_t at, int64_t count) { of(at, count, own, true); });
            });
        });
        return;
    }
    const int64_t length = has_rows ? grouped.share1 : grouped.own2, shared = has_rows ? 1 : grouped.share1;
    const int64_t elements = grouped.elements();
    parallel_parts(elements, grouped.images, [&](int64_t at, int64_t end) {
        int64_t row = at / length, begin = at % length;
        for (; at < end; ++row, begin = 0) {
            const int64_t left = end - at, count = length - begin < left ? length - begin : left;
            const int64_t middle = shared == 1 ? row : row / shared;
            const int64_t outer = grouped.own0 == 1 ? 0 : middle / (grouped.share0 * grouped.own1);
            const float* own = scales + (outer * grouped.own1 + middle % grouped.own1) * grouped.own2;
            of(at, count, has_rows ? own : own + begin, !has_rows);
            at += count;
        }
    });
}

}  // namespace lowbit
