// The C functions of quantize.h for integers: the loops for each instruction set, and their partition among
// threads.
#include "quantize/quantize.h"

#include "quantize/hadamard.h"
#include "quantize/integers.h"
#include "quantize/log_rounding.h"
#include "quantize/ranges.h"

namespace {

using namespace lowbit;

// The loops over what one thread does at a time, for one instruction set.
struct Passes {
    int32_t (*largest_of_rows)(const float* x, const GroupRows& rows, int32_t is_signed);
    void (*largest_of_block)(const float* x, const PeriodicBlock& block, int64_t first, int64_t last,
                             int32_t is_signed, int32_t* most);
    void (*project_rows)(const float* x, const GroupRows& rows, float start, float scale,
                         const MseSearch& mse, Projection& sums);
    void (*project_block)(const float* x, const PeriodicBlock& block, int64_t first, int64_t last,
                          const float* start, const float* scale, const MseSearch& mse, Projections& sums);
    void (*from_integers)(const uint8_t* q, float* y, const float* scales, bool each, int64_t count,
                          int32_t is_signed);
    void (*pack_nibbles)(const uint8_t* q, uint8_t* packed, int64_t count);
    void (*unpack_nibbles)(const uint8_t* packed, uint8_t* q, int64_t count, int32_t is_signed);
    void (*hadamard)(const float* x, float* y, int64_t before, int64_t size, int64_t after, int64_t block);
    decltype(Conversion::convert) log[3], small[3], large[3];  // by the number of draws
};

#define LOWBIT_CONVERT(NAME, TARGET, ...)                                                          \
    TARGET int32_t NAME(const float* x, uint8_t* q, const float* scales, bool each, int32_t count, \
                        float lowest, float highest, const RandomKey* keys, uint32_t index) {      \
        return convert<__VA_ARGS__>(x, q, scales, each, count, lowest, highest, keys, index);      \
    }

#define LOWBIT_PASSES(NAME, TARGET, LOG_ONE_DRAW)                                                          \
    namespace NAME {                                                                                       \
    LOWBIT_CONVERT(round_half_even, TARGET, Nearest)                                                       \
    LOWBIT_CONVERT(one_draw, TARGET, Stochastic<1>)                                                        \
    LOWBIT_CONVERT(two_draws, TARGET, Stochastic<2>)                                                       \
    LOWBIT_CONVERT(small_one_draw, TARGET, StochasticSmall<1>)                                             \
    LOWBIT_CONVERT(small_two_draws, TARGET, StochasticSmall<2>)                                            \
    LOWBIT_CONVERT(log_nearest, TARGET, LogNearest)                                                        \
    LOWBIT_CONVERT(log_two_draws, TARGET, LogStochastic<2>)                                                \
    TARGET int32_t of_rows(const float* x, const GroupRows& rows, int32_t is_signed) {                     \
        return largest_of_rows(x, rows, is_signed);                                                        \
    }                                                                                                      \
    TARGET void of_block(const float* x, const PeriodicBlock& block, int64_t first, int64_t last,          \
                         int32_t is_signed, int32_t* most) {                                               \
        largest_of_block(x, block, first, last, is_signed, most);                                          \
    }                                                                                                      \
    TARGET void project_rows(const float* x, const GroupRows& rows, float start, float scale,              \
                             const MseSearch& mse, Projection& sums) {                                     \
        sums.add(x, rows, start, scale, mse);                                                              \
    }                                                                                                      \
    TARGET void project_block(const float* x, const PeriodicBlock& block, int64_t first, int64_t last,     \
                              const float* start, const float* scale, const MseSearch& mse,                \
                              Projections& sums) {                                                         \
        sums.run(x, block, first, last, start, scale, mse);                                                \
    }                                                                                                      \
    TARGET void from_bytes(const uint8_t* q, float* y, const float* scales, bool each, int64_t count,      \
                           int32_t is_signed) {                                                            \
        from_integers(q, y, scales, each, count, is_signed);                                               \
    }                                                                                                      \
    TARGET void pack(const uint8_t* q, uint8_t* packed, int64_t count) { pack_nibbles(q, packed, count); } \
    TARGET void unpack(const uint8_t* packed, uint8_t* q, int64_t count, int32_t is_signed) {              \
        unpack_nibbles(packed, q, count, is_signed);                                                       \
    }                                                                                                      \
    TARGET void rotate(const float* x, float* y, int64_t before, int64_t size, int64_t after,              \
                       int64_t block) {                                                                    \
        hadamard(x, y, before, size, after, block);                                                        \
    }                                                                                                      \
    const Passes passes = {of_rows,                                                                        \
                           of_block,                                                                       \
                           project_rows,                                                                   \
                           project_block,                                                                  \
                           from_bytes,                                                                     \
                           pack,                                                                           \
                           unpack,                                                                         \
                           rotate,                                                                         \
                           {log_nearest, LOG_ONE_DRAW, log_two_draws},                                     \
                           {round_half_even, small_one_draw, small_two_draws},                             \
                           {round_half_even, one_draw, two_draws}};                                        \
    }

#if LOWBIT_X86
LOWBIT_PASSES(avx512, LOWBIT_TARGET_AVX512, log_one_draw_avx2)
LOWBIT_PASSES(avx2, LOWBIT_TARGET_AVX2, log_one_draw_avx2)
#endif
LOWBIT_CONVERT(log_one_draw_baseline, , LogStochastic<1>)
LOWBIT_PASSES(baseline, , log_one_draw_baseline)

const Passes& current() { return LOWBIT_CHOOSE(passes); }

// Combine the results of one part with those of others; atomically where the parts are on several threads.
void raise(FloatBits* most, const int32_t* found, int64_t count, bool split) {
    if (!split) {
        for (int64_t i = 0; i < count; ++i) most[i] = max_int(most[i], found[i]);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        int32_t before = __atomic_load_n(most + i, __ATOMIC_RELAXED);
        while (before < found[i] && !__atomic_compare_exchange_n(most + i, &before, found[i], true,
                                                                 __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
    }
}

void add(int64_t* sums, const int64_t* found, int64_t count, bool split) {
    for (int64_t i = 0; i < count; ++i) {
        if (split) {
            __atomic_fetch_add(sums + i, found[i], __ATOMIC_RELAXED);
        } else {
            sums[i] += found[i];
        }
    }
}

bool is_finite(float v) { return __builtin_fabsf(v) <= kLargestFloat; }

// The largest magnitude of a group, and of every group of a block.
void largest_of_rows(const float* x, const GroupRows& rows, bool split, int32_t is_signed, float* range) {
    FloatBits* most = reinterpret_cast<FloatBits*>(range);
    *most = 0;
    for_each_part(rows, split, [&](const GroupRows& part) {
        const int32_t found = current().largest_of_rows(x, part, is_signed);
        raise(most, &found, 1, split);
    });
}

void largest_of_block(const float* x, const PeriodicBlock& block, bool split, int32_t is_signed,
                      float* range) {
    FloatBits* most = reinterpret_cast<FloatBits*>(range);
    for (int64_t g = 0; g < block.groups; ++g) most[g] = 0;
    for_each_part(block, split, [&](int64_t first, int64_t last) {
        int32_t found[kBlockWidth];
        current().largest_of_block(x, block, first, last, is_signed, found);
        raise(most, found, block.groups, split);
    });
}

// From the largest magnitude of a group to the range of least squared error.
float mse_of_rows(const float* x, const GroupRows& rows, bool split, float start, const MseSearch& mse,
                  int32_t iterations) {
    float range = start;
    bool changed = is_finite(start);
    for (int32_t iteration = 0; changed && iteration < iterations; ++iteration) {
        Projection all;
        for_each_part(rows, split, [&](const GroupRows& part) {
            Projection sums;
            current().project_rows(x, part, mse.scale(start), mse.scale(range), mse, sums);
            add(&all.along, &sums.along, 1, split);
            add(&all.square, &sums.square, 1, split);
        });
        range = mse.next(start, range, all.along, all.square, &changed);
    }
    return range;
}

void mse_of_block(const float* x, const PeriodicBlock& block, bool split, float* range, const MseSearch& mse,
                  int32_t iterations) {
    float start[kBlockWidth], scale[kBlockWidth], starts[kBlockWidth], scales[kBlockWidth];
    bool changed[kBlockWidth], any = true;
    for (int64_t g = 0; g < block.groups; ++g) start[g] = range[g], changed[g] = is_finite(range[g]);
    for (int32_t iteration = 0; any && iteration < iterations; ++iteration) {
        for (int64_t g = 0; g < block.groups; ++g) scale[g] = mse.scale(range[g]);
        block.broadcast(scale, iteration ? scales : starts);
        int64_t along[kBlockWidth] = {}, square[kBlockWidth] = {};
        for_each_part(block, split, [&](int64_t first, int64_t last) {
            Projections sums;
            current().project_block(x, block, first, last, starts, iteration ? scales : starts, mse, sums);
            add(along, sums.along, block.groups, split);
            add(square, sums.square, block.groups, split);
        });
        any = false;
        for (int64_t g = 0; g < block.groups; ++g) {
            if (changed[g]) range[g] = mse.next(start[g], range[g], along[g], square[g], &changed[g]);
            any |= changed[g];
        }
    }
}

}  // namespace

int lowbit_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t is_signed) {
    return lowbit::guarded([&] {
        const GroupedAxes grouped(*axes);
        if (!grouped.elements()) {
            for (int64_t g = 0; g < grouped.own0 * grouped.own1 * grouped.own2; ++g) ranges[g] = 0;
        } else if (grouped.has_rows(kMinRowToSum)) {
            for_each_group(grouped, [&](const GroupRows& rows, bool split) {
                largest_of_rows(x, rows, split, is_signed, ranges + rows.group);
            });
        } else {
            for_each_block(grouped, [&](const PeriodicBlock& block, bool split) {
                largest_of_block(x, block, split, is_signed, ranges + block.group);
            });
        }
    });
}

int lowbit_mse_ranges(const float* x, float* ranges, const lowbit_axes* axes, int32_t lowest, int32_t highest,
                      int32_t iterations, int32_t is_known) {
    return lowbit::guarded([&] {
        const GroupedAxes layout(*axes);
        const MseSearch mse(lowest, highest);
        if (!layout.elements()) {
            lowbit::checked(lowbit_ranges(x, ranges, axes, true));
        } else if (layout.has_rows(kMinRowToSum)) {
            for_each_group(layout, [&](const GroupRows& rows, bool split) {
                if (!is_known) largest_of_rows(x, rows, split, true, ranges + rows.group);
                ranges[rows.group] = mse_of_rows(x, rows, split, ranges[rows.group], mse, iterations);
            });
        } else {
            for_each_block(layout, [&](const PeriodicBlock& block, bool split) {
                if (!is_known) largest_of_block(x, block, split, true, ranges + block.group);
                mse_of_block(x, block, split, ranges + block.group, mse, iterations);
            });
        }
    });
}

int lowbit_scales(const float* ranges, float* scales, int64_t count, int32_t lowest, int32_t highest) {
    return lowbit::guarded([&] {
        const float largest = largest_scale(lowest, highest);
        for (int64_t i = 0; i < count; ++i) scales[i] = scale_of(ranges[i], float(highest), largest);
    });
}

int64_t lowbit_to_integers(const float* x, void* q, const float* scales, const lowbit_axes* axes,
                           const lowbit_levels* levels, const lowbit_draw* draws, int32_t count_draws,
                           uint64_t first) {
    return lowbit::guarded([&]() -> int64_t {
        const GroupedAxes grouped(*axes);
        if (!grouped.elements()) return 0;
        const bool is_small = levels->lowest > -128 && levels->highest < 128;
        const Passes& passes = current();
        const auto& by = levels->is_log ? passes.log : is_small ? passes.small : passes.large;
        const Conversion conversion = {by[count_draws], float(levels->lowest), float(levels->highest), draws,
                                       count_draws};
        return conversion.convert_all(x, static_cast<uint8_t*>(q), scales, grouped, first);
    });
}

int lowbit_from_integers(const void* q, float* y, const float* scales, const lowbit_axes* axes,
                         int32_t is_signed) {
    return lowbit::guarded([&] {
        const GroupedAxes grouped(*axes);
        if (!grouped.elements()) return;
        const uint8_t* bytes = static_cast<const uint8_t*>(q);
        for_each_run(grouped, scales, [&](int64_t at, int64_t count, const float* own, bool each) {
            current().from_integers(bytes + at, y + at, own, each, count, is_signed);
        });
    });
}

int lowbit_pack_nibbles(const void* q, uint8_t* packed, int64_t count) {
    return lowbit::guarded([&] {
        const uint8_t* bytes = static_cast<const uint8_t*>(q);
        parallel_ranges((count + 1) / 2, 2, [&](int64_t first, int64_t last) {
            const int64_t end = 2 * last < count ? 2 * last : count;
            current().pack_nibbles(bytes + 2 * first, packed + first, end - 2 * first);
        });
    });
}

int lowbit_unpack_nibbles(const uint8_t* packed, void* q, int64_t count, int32_t is_signed) {
    return lowbit::guarded([&] {
        uint8_t* bytes = static_cast<uint8_t*>(q);
        parallel_ranges((count + 1) / 2, 2, [&](int64_t first, int64_t last) {
            const int64_t end = 2 * last < count ? 2 * last : count;
            current().unpack_nibbles(packed + first, bytes + 2 * first, end - 2 * first, is_signed);
        });
    });
}

int lowbit_hadamard(const float* x, float* y, int64_t before, int64_t size, int64_t after, int64_t block) {
    return lowbit::guarded([&] {
        parallel_ranges(before, size * after, [&](int64_t first, int64_t last) {
            const int64_t at = first * size * after;
            current().hadamard(x + at, y + at, last - first, size, after, block);
        });
    });
}
