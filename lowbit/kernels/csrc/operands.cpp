// The passes of operands.h, compiled for each instruction set; which one runs is chosen in variants.cpp.
#include "operands.h"

#include "hadamard_bodies.h"
#include "instruction_set.h"
#include "integer_bodies.h"
#include "packed_bodies.h"
#include "range_bodies.h"

namespace {

using namespace lowbit;

// Of rows, a panel, or what lies side by side: what a thread does at a time.
struct Passes {
    int32_t (*largest_of_rows)(const float* x, const Rows& rows, int32_t is_signed);
    void (*largest_of_panel)(const float* x, const Panel& panel, int64_t first, int64_t last, int32_t is_signed,
                             int32_t* most);
    void (*project_rows)(const float* x, const Rows& rows, float start, float scale, const Mse& mse, Projection& sums);
    void (*project_panel)(const float* x, const Panel& panel, int64_t first, int64_t last, const float* start,
                          const float* scale, const Mse& mse, Projections& sums);
    void (*from_integers)(const uint8_t* q, float* y, const float* scales, bool each, int64_t count,
                          int32_t is_signed);
    void (*pack_nibbles)(const uint8_t* q, uint8_t* packed, int64_t count);
    void (*unpack_nibbles)(const uint8_t* packed, uint8_t* q, int64_t count, int32_t is_signed);
    void (*hadamard)(const float* x, float* y, int64_t before, int64_t size, int64_t after, int64_t block);
    decltype(Conversion::convert) log[3], small[3], large[3];  // for as many draws
};

#define LOWBIT_CONVERT(NAME, TARGET, ...)                                                                     \
    TARGET int32_t NAME(const float* x, uint8_t* q, const float* scales, bool each, int32_t count,            \
                        float lowest, float highest, const RandomKey* keys, uint32_t index) {                 \
        return convert<__VA_ARGS__>(x, q, scales, each, count, lowest, highest, keys, index);                 \
    }

#define LOWBIT_PASSES(NAME, TARGET)                                                                           \
    namespace NAME {                                                                                          \
    LOWBIT_CONVERT(nearest, TARGET, Nearest)                                                                  \
    LOWBIT_CONVERT(one_draw, TARGET, Stochastic<1>)                                                           \
    LOWBIT_CONVERT(two_draws, TARGET, Stochastic<2>)                                                          \
    LOWBIT_CONVERT(small_one_draw, TARGET, StochasticSmall<1>)                                                \
    LOWBIT_CONVERT(small_two_draws, TARGET, StochasticSmall<2>)                                               \
    LOWBIT_CONVERT(log_nearest, TARGET, LogNearest)                                                           \
    LOWBIT_CONVERT(log_one_draw, TARGET, LogStochastic<1>)                                                    \
    LOWBIT_CONVERT(log_two_draws, TARGET, LogStochastic<2>)                                                   \
    TARGET int32_t of_rows(const float* x, const Rows& rows, int32_t is_signed) {                             \
        return largest_of_rows(x, rows, is_signed);                                                           \
    }                                                                                                         \
    TARGET void of_panel(const float* x, const Panel& panel, int64_t first, int64_t last, int32_t is_signed,  \
                         int32_t* most) {                                                                     \
        largest_of_panel(x, panel, first, last, is_signed, most);                                             \
    }                                                                                                         \
    TARGET void project_rows(const float* x, const Rows& rows, float start, float scale, const Mse& mse,      \
                             Projection& sums) {                                                              \
        sums.add(x, rows, start, scale, mse);                                                                 \
    }                                                                                                         \
    TARGET void project_panel(const float* x, const Panel& panel, int64_t first, int64_t last,                \
                              const float* start, const float* scale, const Mse& mse, Projections& sums) {    \
        sums.run(x, panel, first, last, start, scale, mse);                                                   \
    }                                                                                                         \
    TARGET void from_bytes(const uint8_t* q, float* y, const float* scales, bool each, int64_t count,         \
                           int32_t is_signed) {                                                               \
        from_integers(q, y, scales, each, count, is_signed);                                                  \
    }                                                                                                         \
    TARGET void pack(const uint8_t* q, uint8_t* packed, int64_t count) { pack_nibbles(q, packed, count); }    \
    TARGET void unpack(const uint8_t* packed, uint8_t* q, int64_t count, int32_t is_signed) {                 \
        unpack_nibbles(packed, q, count, is_signed);                                                          \
    }                                                                                                         \
    TARGET void turn(const float* x, float* y, int64_t before, int64_t size, int64_t after, int64_t block) {  \
        hadamard(x, y, before, size, after, block);                                                           \
    }                                                                                                         \
    const Passes passes = {of_rows,                                                                           \
                           of_panel,                                                                          \
                           project_rows,                                                                      \
                           project_panel,                                                                     \
                           from_bytes,                                                                        \
                           pack,                                                                              \
                           unpack,                                                                            \
                           turn,                                                                              \
                           {log_nearest, log_one_draw, log_two_draws},                                        \
                           {nearest, small_one_draw, small_two_draws},                                        \
                           {nearest, one_draw, two_draws}};                                                   \
    }

#if LOWBIT_X86
LOWBIT_PASSES(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
LOWBIT_PASSES(avx2, __attribute__((target("avx2"))))
#endif
LOWBIT_PASSES(baseline, )

const Passes& current() {
#if LOWBIT_X86
    const lowbit::InstructionSet set = lowbit::instruction_set();
    if (set >= lowbit::InstructionSet::avx512) return avx512::passes;
    if (set >= lowbit::InstructionSet::avx2) return avx2::passes;
#endif
    return baseline::passes;
}

// What parts of a tensor that is cut find, put together.
void raise(Bits* most, const int32_t* found, int64_t count, bool cut) {
    if (!cut) {
        for (int64_t i = 0; i < count; ++i) most[i] = larger(most[i], found[i]);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        int32_t before = __atomic_load_n(most + i, __ATOMIC_RELAXED);
        while (before < found[i] && !__atomic_compare_exchange_n(most + i, &before, found[i], true, __ATOMIC_RELAXED,
                                                                 __ATOMIC_RELAXED)) {
        }
    }
}

void add(int64_t* sums, const int64_t* found, int64_t count, bool cut) {
    for (int64_t i = 0; i < count; ++i) {
        if (cut) {
            __atomic_fetch_add(sums + i, found[i], __ATOMIC_RELAXED);
        } else {
            sums[i] += found[i];
        }
    }
}

bool is_finite(float v) { return __builtin_fabsf(v) <= kLargestFloat; }

// The largest magnitude of a group, and of each of a panel's.
void largest_of_rows(const float* x, const Rows& rows, bool cut, int32_t is_signed, float* range) {
    Bits* most = reinterpret_cast<Bits*>(range);
    *most = 0;
    each_part(rows, cut, [&](const Rows& part) {
        const int32_t found = current().largest_of_rows(x, part, is_signed);
        raise(most, &found, 1, cut);
    });
}

void largest_of_panel(const float* x, const Panel& panel, bool cut, int32_t is_signed, float* range) {
    Bits* most = reinterpret_cast<Bits*>(range);
    for (int64_t g = 0; g < panel.groups; ++g) most[g] = 0;
    each_part(panel, cut, [&](int64_t first, int64_t last) {
        int32_t found[kPanel];
        current().largest_of_panel(x, panel, first, last, is_signed, found);
        raise(most, found, panel.groups, cut);
    });
}

// From the range of a group to the one with the least squared error.
float mse_of_rows(const float* x, const Rows& rows, bool cut, float start, const Mse& mse, int32_t turns) {
    float range = start;
    bool moving = is_finite(start);
    for (int32_t turn = 0; moving && turn < turns; ++turn) {
        Projection all;
        each_part(rows, cut, [&](const Rows& part) {
            Projection sums;
            current().project_rows(x, part, mse.scale(start), mse.scale(range), mse, sums);
            add(&all.along, &sums.along, 1, cut);
            add(&all.square, &sums.square, 1, cut);
        });
        range = mse.next(start, range, all.along, all.square, &moving);
    }
    return range;
}

void mse_of_panel(const float* x, const Panel& panel, bool cut, float* range, const Mse& mse, int32_t turns) {
    float start[kPanel], scale[kPanel], starts[kPanel], scales[kPanel];
    bool moving[kPanel], any = true;
    for (int64_t g = 0; g < panel.groups; ++g) start[g] = range[g], moving[g] = is_finite(range[g]);
    for (int32_t turn = 0; any && turn < turns; ++turn) {
        for (int64_t g = 0; g < panel.groups; ++g) scale[g] = mse.scale(range[g]);
        panel.expand(scale, turn ? scales : starts);
        int64_t along[kPanel] = {}, square[kPanel] = {};
        each_part(panel, cut, [&](int64_t first, int64_t last) {
            Projections sums;
            current().project_panel(x, panel, first, last, starts, turn ? scales : starts, mse, sums);
            add(along, sums.along, panel.groups, cut);
            add(square, sums.square, panel.groups, cut);
        });
        any = false;
        for (int64_t g = 0; g < panel.groups; ++g) {
            if (moving[g]) range[g] = mse.next(start[g], range[g], along[g], square[g], &moving[g]);
            any |= moving[g];
        }
    }
}

}  // namespace

void lowbit_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t is_signed) {
    const Turns turns(*axes);
    if (!turns.elements()) {
        for (int64_t g = 0; g < turns.own0 * turns.own1 * turns.own2; ++g) ranges[g] = 0;
    } else if (turns.in_rows(kShortToSum)) {
        each_group(turns, [&](const Rows& rows, bool cut) {
            largest_of_rows(x, rows, cut, is_signed, ranges + rows.group);
        });
    } else {
        each_panel(turns, [&](const Panel& panel, bool cut) {
            largest_of_panel(x, panel, cut, is_signed, ranges + panel.group);
        });
    }
}

void lowbit_mse_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t lowest, int32_t highest,
                       int32_t turns, int32_t is_known) {
    const Turns layout(*axes);
    const Mse mse(lowest, highest);
    if (!layout.elements()) return lowbit_ranges(x, ranges, axes, true);
    if (layout.in_rows(kShortToSum)) {
        each_group(layout, [&](const Rows& rows, bool cut) {
            if (!is_known) largest_of_rows(x, rows, cut, true, ranges + rows.group);
            ranges[rows.group] = mse_of_rows(x, rows, cut, ranges[rows.group], mse, turns);
        });
    } else {
        each_panel(layout, [&](const Panel& panel, bool cut) {
            if (!is_known) largest_of_panel(x, panel, cut, true, ranges + panel.group);
            mse_of_panel(x, panel, cut, ranges + panel.group, mse, turns);
        });
    }
}

void lowbit_scales(const float* ranges, float* scales, int64_t count, int32_t lowest, int32_t highest) {
    const float largest = largest_scale(lowest, highest);
    for (int64_t i = 0; i < count; ++i) scales[i] = scale_of(ranges[i], float(highest), largest);
}

int64_t lowbit_to_integers(const float* x, void* q, const float* scales, const lowbit_axes* axes,
                           const lowbit_levels* levels, const lowbit_draw* draws, int32_t count_draws, uint64_t first) {
    const Turns turns(*axes);
    if (!turns.elements()) return 0;
    const bool is_small = levels->lowest > -128 && levels->highest < 128;
    const Passes& passes = current();
    const auto& by = levels->is_log ? passes.log : is_small ? passes.small : passes.large;
    const Conversion conversion = {by[count_draws], float(levels->lowest), float(levels->highest), draws, count_draws};
    return conversion.all(x, static_cast<uint8_t*>(q), scales, turns, first);
}

void lowbit_from_integers(const void* q, float* y, const float* scales, const lowbit_axes* axes, int32_t is_signed) {
    const Turns turns(*axes);
    if (!turns.elements()) return;
    const uint8_t* bytes = static_cast<const uint8_t*>(q);
    each_stretch(turns, scales, [&](int64_t at, int64_t count, const float* own, bool each) {
        current().from_integers(bytes + at, y + at, own, each, count, is_signed);
    });
}

void lowbit_pack_nibbles(const void* q, uint8_t* packed, int64_t count) {
    const uint8_t* bytes = static_cast<const uint8_t*>(q);
    in_parts((count + 1) / 2, 2, [&](int64_t first, int64_t last) {
        const int64_t end = 2 * last < count ? 2 * last : count;
        current().pack_nibbles(bytes + 2 * first, packed + first, end - 2 * first);
    });
}

void lowbit_unpack_nibbles(const uint8_t* packed, void* q, int64_t count, int32_t is_signed) {
    uint8_t* bytes = static_cast<uint8_t*>(q);
    in_parts((count + 1) / 2, 2, [&](int64_t first, int64_t last) {
        const int64_t end = 2 * last < count ? 2 * last : count;
        current().unpack_nibbles(packed + first, bytes + 2 * first, end - 2 * first, is_signed);
    });
}

void lowbit_hadamard(const float* x, float* y, int64_t before, int64_t size, int64_t after, int64_t block) {
    in_parts(before, size * after, [&](int64_t first, int64_t last) {
        const int64_t at = first * size * after;
        current().hadamard(x + at, y + at, last - first, size, after, block);
    });
}
