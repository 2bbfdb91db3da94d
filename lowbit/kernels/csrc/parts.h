// Passes over much memory, cut into parts for the threads: along the groups of a tensor where there are enough of them,
// else within a group. What parts of a group find is put together by atomic operations on integers, whose order
// changes nothing.
#pragma once
#include "axes.h"
#include "threads.h"

namespace lowbit {

constexpr int64_t kPart = 1 << 15;  // elements: fewer are not worth handing out
constexpr int kPartsPerThread = 8;  // so that threads finish at about the same time

// body(first, last) for parts of `items`, of so many elements each.
template <class Body>
void in_parts(int64_t items, int64_t elements, const Body& body) {
    if (!elements) return;
    const int64_t worth_it = elements < kPart ? (kPart + elements - 1) / elements : 1;
    const int64_t fair = items / (kPartsPerThread * lowbit_threads()), step = worth_it < fair ? fair : worth_it;
    parallel_for((items + step - 1) / step, [&](int64_t part) {
        const int64_t first = part * step, left = items - first;
        body(first, first + (left < step ? left : step));
    });
}

// of(item, whether it is cut) for groups or panels of so many elements each: where they are few, of(item) is to cut it.
template <class Of>
void each_of(int64_t items, int64_t elements, const Of& of) {
    if (lowbit_threads() > 1 && items < kPartsPerThread / 2 * lowbit_threads() && elements > kPart) {
        for (int64_t item = 0; item < items; ++item) of(item, true);
    } else {
        in_parts(items, elements, [&](int64_t first, int64_t last) {
            for (int64_t item = first; item < last; ++item) of(item, false);
        });
    }
}

// of(rows, whether they are cut) for the groups of a tensor that is `in_rows`.
template <class Of>
void each_group(const Turns& turns, const Of& of) {
    each_of(turns.own0 * turns.own1, turns.share0 * turns.share1,
            [&](int64_t group, bool cut) { of(rows_of(turns, group), cut); });
}

// of(panel, whether it is cut) for those of a tensor that is not.
template <class Of>
void each_panel(const Turns& turns, const Of& of) {
    const Panels panels(turns);
    each_of(panels.count(), turns.elements() / panels.count(),
            [&](int64_t number, bool cut) { of(panels[number], cut); });
}

// of(rows) for parts of them: of many, or of each.
template <class Of>
void each_part(const Rows& rows, bool cut, const Of& of) {
    if (!cut) return of(rows);
    const int64_t pieces = (rows.length + kPart - 1) / kPart;
    in_parts(rows.count * pieces, rows.length / pieces, [&](int64_t first, int64_t last) {
        if (pieces == 1) {
            const int64_t at = rows.at + first * rows.stride;
            return of(Rows{rows.group, at, rows.length, last - first, rows.stride});
        }
        for (int64_t piece = first; piece < last; ++piece) {
            const int64_t begin = piece % pieces * kPart, left = rows.length - begin;
            const int64_t at = rows.at + piece / pieces * rows.stride + begin;
            of(Rows{rows.group, at, left < kPart ? left : kPart, 1, rows.stride});
        }
    });
}

// of(first, last) for parts of the times that a panel recurs.
template <class Of>
void each_part(const Panel& panel, bool cut, const Of& of) {
    if (cut) return in_parts(panel.times(), panel.width, of);
    of(0, panel.times());
}

// of(start, count, scales, whether each has its own) for stretches of memory that are the whole tensor together.
template <class Of>
void each_stretch(const Turns& turns, const float* scales, const Of& of) {
    const bool in_rows = turns.in_rows(kShortToVisit);
    if (!in_rows && turns.own2 < kPanel / 2) {
        each_panel(turns, [&](const Panel& panel, bool cut) {
            float own[kPanel];
            panel.expand(scales + panel.group, own);
            each_part(panel, cut, [&](int64_t first, int64_t last) {
                panel.each_time(first, last, [&](int64_t at, int64_t count) { of(at, count, own, true); });
            });
        });
        return;
    }
    const int64_t length = in_rows ? turns.share1 : turns.own2, shared = in_rows ? 1 : turns.share1;
    const int64_t elements = turns.elements();
    in_parts((elements + kPanel - 1) / kPanel, kPanel, [&](int64_t first, int64_t last) {
        const int64_t end = last * kPanel < elements ? last * kPanel : elements;
        int64_t at = first * kPanel, row = at / length, begin = at % length;
        for (; at < end; ++row, begin = 0) {
            const int64_t left = end - at, count = length - begin < left ? length - begin : left;
            const int64_t middle = shared == 1 ? row : row / shared;
            const int64_t outer = turns.own0 == 1 ? 0 : middle / (turns.share0 * turns.own1);
            const float* own = scales + (outer * turns.own1 + middle % turns.own1) * turns.own2;
            of(at, count, in_rows ? own : own + begin, !in_rows);
            at += count;
        }
    });
}

}  // namespace lowbit
