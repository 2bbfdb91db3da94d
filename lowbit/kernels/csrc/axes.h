// The ways through a tensor whose axes own scales or share them: what of it lies side by side and how it belongs to
// groups. A tensor is either rows of one scale each, or, where rows would be short or every element has its own
// scale, panels: a stretch of memory that recurs, its places belonging to the same groups every time.
#pragma once
#include "loops.h"
#include "operands.h"

namespace lowbit {

constexpr int kPanel = 1024;  // places: what is kept for each of them stays in the first cache
// Shorter rows are taken together: a sum pays for its end, an element only for what is left behind the vectors.
constexpr int kShortToSum = 32, kShortToVisit = 256;

// The axes taken together as [own0, share0, own1, share1, own2], so that owning and sharing take turns.
struct Turns {
    int64_t own0 = 1, share0 = 1, own1 = 1, share1 = 1, own2 = 1;

    explicit Turns(const lowbit_axes& axes) {
        int64_t* const sizes[5] = {&own0, &share0, &own1, &share1, &own2};
        int at = 4;
        for (int axis = 3; axis >= 0; --axis) {
            if (axes.sizes[axis] == 1) continue;
            if ((axes.owns[axis] != 0) != (at % 2 == 0)) --at;
            *sizes[at] *= axes.sizes[axis];
        }
    }

    int64_t elements() const { return own0 * share0 * own1 * share1 * own2; }
    bool in_rows(int64_t shortest) const { return own2 == 1 && share1 >= shortest; }
};

// `count` rows of one group.
struct Rows {
    int64_t group, at, length, count, stride;
};

// Those of a group: for tensors that are `in_rows`.
inline Rows rows_of(const Turns& turns, int64_t group) {
    const int64_t stride = turns.own1 * turns.share1;
    const int64_t outer = turns.own0 == 1 ? 0 : group / turns.own1, inner = group - outer * turns.own1;
    return {group, outer * turns.share0 * stride + inner * turns.share1, turns.share1, turns.share0, stride};
}

// A stretch of `width` places from `at` on, that recurs `across` times side by side (the last time shorter) and
// `down` times at a stride. `repeat` places side by side are of one group; after `groups` groups the first follows.
struct Panel {
    int64_t group, groups, repeat;
    int64_t at, width, last_width;
    int64_t across, across_stride, down, stride;

    int64_t times() const { return down * across; }

    // of(start, count) from one time to another, the first `count` places recurring.
    template <class Of>
    LOWBIT_INLINE void each_time(int64_t first, int64_t last, Of of) const {
        int64_t d = first / across, a = first % across;
        for (int64_t time = first; time < last; ++time) {
            const bool ends = a + 1 == across;
            of(at + d * stride + a * across_stride, ends ? last_width : width);
            a = ends ? 0 : a + 1;
            d += ends;
        }
    }

    // out[place] = in[group - first group of the panel].
    template <class T>
    LOWBIT_INLINE void expand(const T* in, T* out) const {
        if (repeat > 1) {
            for (int64_t g = 0, place = 0; g < groups; ++g) {
                for (int64_t end = place + repeat; place < end; ++place) out[place] = in[g];
            }
            return;
        }
        for (int64_t start = 0; start < width; start += groups) {
            for (int64_t g = 0; g < groups; ++g) out[start + g] = in[g];
        }
    }

    // The other way: the first values become those of the groups, what several places have being combined.
    template <class T, class Combine>
    LOWBIT_INLINE void collapse(T* values, Combine combine) const {
        if (repeat > 1) {
            for (int64_t g = 0; g < groups; ++g) {
                T all = values[g * repeat];
                for (int64_t i = 1; i < repeat; ++i) all = combine(all, values[g * repeat + i]);
                values[g] = all;
            }
            return;
        }
        for (int64_t start = groups; start < width; start += groups) {
            for (int64_t g = 0; g < groups; ++g) values[g] = combine(values[g], values[start + g]);
        }
    }
};

// How many panels a tensor has that is not `in_rows`; all of a group is in one of them.
struct Panels {
    const Turns& turns;
    int64_t most, across_outer;  // groups in one, and panels side by side

    explicit Panels(const Turns& of)
        : turns(of),
          most(of.own2 == 1 ? kPanel / of.share1 : kPanel),
          across_outer(((of.own2 == 1 ? of.own1 : of.own2) + most - 1) / most) {}

    int64_t count() const { return turns.own0 * (turns.own2 == 1 ? 1 : turns.own1) * across_outer; }

    Panel operator[](int64_t number) const {
        const int64_t plane = turns.share1 * turns.own2, stride = turns.own1 * plane;
        const int64_t outer = number / across_outer, first = number % across_outer * most;
        if (turns.own2 == 1) {
            const int64_t left = turns.own1 - first, groups = left < most ? left : most, width = groups * turns.share1;
            const int64_t at = outer * turns.share0 * stride + first * turns.share1;
            return {outer * turns.own1 + first, groups, turns.share1, at, width, width, 1, 0, turns.share0, stride};
        }
        const int64_t fitting = turns.own2 < kPanel ? kPanel / turns.own2 : 1;
        const int64_t abreast = fitting < turns.share1 ? fitting : turns.share1;
        const int64_t across = (turns.share1 + abreast - 1) / abreast, last = turns.share1 - (across - 1) * abreast;
        const int64_t at = outer / turns.own1 * turns.share0 * stride + outer % turns.own1 * plane + first;
        const int64_t left = turns.own2 - first, groups = left < kPanel ? left : kPanel;
        return {outer * turns.own2 + first, groups, 1, at, groups * abreast, groups * last, across,
                turns.own2 * abreast, turns.share0, stride};
    }
};

// A scale that elements have in common, and one for each of them.
struct OneScale {
    float value;
    LOWBIT_INLINE float operator[](int64_t) const { return value; }
};

struct ScaleEach {
    const float* values;
    LOWBIT_INLINE float operator[](int64_t i) const { return values[i]; }
};

}  // namespace lowbit
