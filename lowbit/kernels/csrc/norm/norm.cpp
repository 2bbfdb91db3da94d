// The C functions of norm.h: the loops for each instruction set, in parallel.
#include "norm/norm.h"

#include "common/scratch.h"
#include "common/threads.h"
#include "norm/batch_norm_backward.h"
#include "norm/channel_product.h"
#include "norm/max_pool.h"
#include "norm/quantized_norm.h"

#include <algorithm>

namespace {

using lowbit::checked;
using lowbit::Scratch;
using lowbit::norm::Backward;
using lowbit::norm::Channels;
using lowbit::norm::ChannelTerms;
using lowbit::norm::QuantizedMarks;
using lowbit::norm::QuantizedRows;
using lowbit::norm::Statistics;

// The loops over a few channels, a chunk or a plane, for one instruction set.
struct Kernels {
    bool (*batch_norm_forward)(const lowbit_batch_norm& of, Channels channels, float* y, float* mean,
                               float* inverse, float* running_mean, float* running_variance, uint8_t* bits,
                               const lowbit_multiples* multiples, float* largest, uint8_t* places,
                               float* scratch, int32_t* columns, float* x_row);
    void (*backward_sums)(const Backward& in, Channels channels, float* dweight, float* dbias, float* dother,
                          ChannelTerms terms, float* scratch);
    void (*backward_rows)(const Backward& in, Channels channels, int64_t image, ChannelTerms terms, float* dx,
                          float* largest, float* scratch);
    void (*relu_forward)(const float* x, float* y, uint8_t* bits, int64_t count);
    void (*relu_backward)(const float* dy, const uint8_t* bits, float* dx, int64_t count);
    void (*hardswish_forward)(const float* x, float* y, int64_t count);
    void (*hardswish_backward)(const float* x, const float* dy, float* dx, int64_t count);
    void (*channel_product)(const float* x, const float* scale, float* y, int64_t rows, int64_t inner);
    void (*channel_product_backward)(const float* x, const float* scale, const float* dy, float* dx,
                                     float* dscale, int64_t rows, int64_t inner);
    void (*max_pool_forward)(const float* x, float* y, uint8_t* places, const lowbit_pool& of, float* best,
                             int32_t* at);
    void (*max_pool_backward)(const float* dy, const uint8_t* places, float* dx, const lowbit_pool& of);
    void (*statistics_and_ends)(const lowbit_batch_norm& of, Channels channels, Statistics to, float* ends);
    int64_t (*quantized_rows)(const lowbit_batch_norm& of, Channels channels, const float* mean,
                              const float* inverse, const lowbit_norm_quantizers& by,
                              const QuantizedRows& to);
    void (*quantized_backward_sums)(const Backward& in, Channels channels, const float* dy,
                                    const QuantizedMarks& marks, const lowbit_norm_quantizers& by,
                                    int32_t activation, float* dx, float* dweight, float* dbias, double* sums,
                                    double* after_sums, ChannelTerms terms, float* scratch);
};

#define LOWBIT_NORM_KERNELS(NAME, TARGET, ADD)                                                               \
    namespace NAME {                                                                                         \
    TARGET bool batch_norm_forward(const lowbit_batch_norm& of, Channels channels, float* y, float* mean,    \
                                   float* inverse, float* running_mean, float* running_variance,             \
                                   uint8_t* bits, const lowbit_multiples* multiples, float* largest,         \
                                   uint8_t* places, float* scratch, int32_t* columns, float* x_row) {        \
        return lowbit::norm::batch_norm_forward<lowbit::norm::ADD>(                                          \
            of, channels, y, mean, inverse, running_mean, running_variance, bits, multiples, largest,        \
            places, scratch, columns, x_row);                                                                \
    }                                                                                                        \
    TARGET void backward_sums(const Backward& in, Channels channels, float* dweight, float* dbias,           \
                              float* dother, ChannelTerms terms, float* scratch) {                           \
        lowbit::norm::backward_sums<lowbit::norm::ADD>(in, channels, dweight, dbias, dother, terms, scratch, \
                                                       [](int64_t) {});                                      \
    }                                                                                                        \
    TARGET void backward_rows(const Backward& in, Channels channels, int64_t image, ChannelTerms terms,      \
                              float* dx, float* largest, float* scratch) {                                   \
        lowbit::norm::backward_rows(in, channels, image, terms, dx, largest, scratch);                       \
    }                                                                                                        \
    TARGET void relu_forward(const float* x, float* y, uint8_t* bits, int64_t count) {                       \
        lowbit::norm::relu_forward(x, y, bits, count);                                                       \
    }                                                                                                        \
    TARGET void relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count) {              \
        lowbit::norm::relu_backward(dy, bits, dx, count);                                                    \
    }                                                                                                        \
    TARGET void hardswish_forward(const float* x, float* y, int64_t count) {                                 \
        lowbit::norm::hardswish_forward(x, y, count);                                                        \
    }                                                                                                        \
    TARGET void hardswish_backward(const float* x, const float* dy, float* dx, int64_t count) {              \
        lowbit::norm::hardswish_backward(x, dy, dx, count);                                                  \
    }                                                                                                        \
    TARGET void channel_product(const float* x, const float* scale, float* y, int64_t rows, int64_t inner) { \
        lowbit::norm::channel_product(x, scale, y, rows, inner);                                             \
    }                                                                                                        \
    TARGET void channel_product_backward(const float* x, const float* scale, const float* dy, float* dx,     \
                                         float* dscale, int64_t rows, int64_t inner) {                       \
        lowbit::norm::channel_product_backward(x, scale, dy, dx, dscale, rows, inner);                       \
    }                                                                                                        \
    TARGET void max_pool_forward(const float* x, float* y, uint8_t* places, const lowbit_pool& of,           \
                                 float* best, int32_t* at) {                                                 \
        lowbit::norm::max_pool_forward(x, y, places, of, best, at);                                          \
    }                                                                                                        \
    TARGET void max_pool_backward(const float* dy, const uint8_t* places, float* dx,                         \
                                  const lowbit_pool& of) {                                                   \
        lowbit::norm::max_pool_backward(dy, places, dx, of);                                                 \
    }                                                                                                        \
    TARGET void statistics_and_ends(const lowbit_batch_norm& of, Channels channels, Statistics to,           \
                                    float* ends) {                                                           \
        lowbit::norm::statistics_and_ends<lowbit::norm::ADD>(of, channels, to, ends);                        \
    }                                                                                                        \
    TARGET int64_t quantized_rows(const lowbit_batch_norm& of, Channels channels, const float* mean,         \
                                  const float* inverse, const lowbit_norm_quantizers& by,                    \
                                  const QuantizedRows& to) {                                                 \
        return lowbit::norm::quantized_rows(of, channels, mean, inverse, by, to);                            \
    }                                                                                                        \
    TARGET void quantized_backward_sums(const Backward& in, Channels channels, const float* dy,              \
                                        const QuantizedMarks& marks, const lowbit_norm_quantizers& by,       \
                                        int32_t activation, float* dx, float* dweight, float* dbias,         \
                                        double* sums, double* after_sums, ChannelTerms terms,                \
                                        float* scratch) {                                                    \
        lowbit_batch_norm of = in.of;                                                                        \
        of.activation = activation;                                                                          \
        const auto prepare = [&](int64_t image) LOWBIT_INLINE_LAMBDA {                                       \
            lowbit::norm::before_quantizers_of_image(dy, marks, by, of, channels, image, dx, sums,           \
                                                     after_sums);                                            \
        };                                                                                                   \
        lowbit::norm::backward_sums<lowbit::norm::ADD>(in, channels, dweight, dbias, nullptr, terms,         \
                                                       scratch, prepare);                                    \
    }                                                                                                        \
    const Kernels kernels = {batch_norm_forward, backward_sums,          backward_rows,                      \
                             relu_forward,       relu_backward,          hardswish_forward,                  \
                             hardswish_backward, channel_product,        channel_product_backward,           \
                             max_pool_forward,   max_pool_backward,      statistics_and_ends,                \
                             quantized_rows,     quantized_backward_sums};                                   \
    }

#if LOWBIT_X86
LOWBIT_NORM_KERNELS(avx512, LOWBIT_TARGET_AVX512, add_pairs_avx512)
LOWBIT_NORM_KERNELS(avx2, LOWBIT_TARGET_AVX2, add_pairs_avx2)
#endif
LOWBIT_NORM_KERNELS(baseline, , add_pairs_baseline)

const Kernels& kernels() { return LOWBIT_CHOOSE(kernels); }

// body(channels) for groups of channels, in parallel: as many together as make rows of about 128 KB in an
// image, but two groups for every thread. Of shorter rows, processors prefetch too little.
template <class Body>
void parallel_channels(lowbit_layout layout, Body body) {
    constexpr int64_t kRow = 1 << 15, most = lowbit::norm::kMaxChannels;
    const int64_t threads = lowbit_threads(), groups = threads > 1 ? 2 * threads : 1;
    const int64_t share = lowbit::ceil_div(layout.channels, groups);
    const int64_t wanted = std::min({kRow / layout.inner, share, most}), step = std::max<int64_t>(wanted, 1);
    lowbit::parallel_for((layout.channels + step - 1) / step, [&](int64_t item) {
        const int64_t first = item * step, left = layout.channels - first;
        body(Channels{first, left < step ? left : step});
    });
}

// body(first, count) for chunks of elements, in parallel; each starts at a whole byte of the bits.
template <class Body>
void parallel_chunks(int64_t count, Body body) {
    constexpr int64_t kChunk = 1 << 16;
    lowbit::parallel_for((count + kChunk - 1) / kChunk, [&](int64_t item) {
        const int64_t first = item * kChunk, left = count - first;
        body(first, left < kChunk ? left : kChunk);
    });
}

// The values that a quantizer's range counts: all of them, or, with PACT on an unsigned grid, those above 0.
bool counts_negative(const lowbit_observer& by) { return !by.alpha || by.grid.is_signed; }

float range_of(float value, const lowbit_observer& by) {
    return counts_negative(by) ? std::fabs(value) : value;
}

// Of two ranges; NaN stays.
float larger(float range, float other) { return range != range || other <= range ? range : other; }

float range_before_activation(const float* ends, int64_t channels, const lowbit_observer& by) {
    float range = 0;
    for (int64_t i = 0; i < 2 * channels; ++i) range = larger(range, range_of(ends[i], by));
    return range;
}

// The range of what comes to the quantizer after the activation; NaN where the ends of the batch norm's
// values do not tell it.
float range_after_activation(const float* ends, const lowbit_batch_norm& of,
                             const lowbit_norm_quantizers& by) {
    // Below 0, hard swish goes down to -0.375 and up again: from there on, a larger value has the range.
    constexpr float kTurn = 0.376f;
    float range = 0;
    for (int64_t i = 0; i < 2 * of.layout.channels; ++i) {
        float value = ends[i];
        if (by.before) {
            int8_t clipped;
            lowbit::norm::mark_by(lowbit::mark_calls(), *by.before, &ends[i], &value, nullptr, &clipped, 1);
        }
        lowbit::norm::activate(&value, of.activation, &value, 1);
        range = larger(range, range_of(value, *by.after));
    }
    const bool is_known = of.activation != LOWBIT_HARDSWISH || !counts_negative(*by.after) || range >= kTurn;
    return is_known ? range : NAN;
}

}  // namespace

int32_t lowbit_batch_norm_forward(const lowbit_batch_norm* of, float* y, float* mean, float* inverse,
                                  float* running_mean, float* running_variance, uint8_t* bits,
                                  const lowbit_multiples* multiples, float* largest, uint8_t* places) {
    return lowbit::guarded([&]() -> int32_t {
        const Kernels& own = kernels();
        std::atomic<bool> fits{multiples != nullptr};
        parallel_channels(of->layout, [&](Channels channels) {
            thread_local Scratch rows, columns, x_row;
            const int64_t parts = of->pool ? of->pool->height * of->pool->out_width : 0;
            const bool done =
                own.batch_norm_forward(*of, channels, y, mean, inverse, running_mean, running_variance, bits,
                                       fits ? multiples : nullptr, largest, places,
                                       of->pool ? rows.get<float>(of->layout.inner + parts) : nullptr,
                                       of->pool ? columns.get<int32_t>(parts) : nullptr,
                                       of->x ? nullptr : x_row.get<float>(of->layout.inner));
            if (!done) fits = false;
        });
        return fits;
    });
}

int lowbit_batch_norm_backward(const lowbit_batch_norm* of, const uint8_t* bits,
                               const lowbit_multiples* multiples, const float* mean, const float* inverse,
                               const float* dy, float* dx, float* dweight, float* dbias, float* dother,
                               float* largest, const uint8_t* places) {
    return lowbit::guarded([&] {
        if (!of->activation) dother = nullptr, bits = nullptr;
        const Backward in = {*of, bits, multiples, mean, inverse, dy, places};
        const Backward rest = dother ? in.after_activation(dother) : in;
        const Kernels& own = kernels();
        parallel_channels(of->layout, [&](Channels channels) {
            thread_local Scratch memory;
            float* scratch = memory.get<float>(4 * of->layout.inner);
            float common[lowbit::norm::kMaxChannels], slope[lowbit::norm::kMaxChannels];
            const ChannelTerms terms = {common, slope};
            own.backward_sums(in, channels, dweight, dbias, dother, terms, scratch);
            for (int64_t image = 0; dx && image < of->layout.outer; ++image) {
                const int64_t row = image * of->layout.channels + channels.first;
                own.backward_rows(rest, channels, image, terms, dx + row * of->layout.inner,
                                  largest ? largest + row : nullptr, scratch);
            }
        });
    });
}

int64_t lowbit_quantized_norm_values(const lowbit_batch_norm* of, const lowbit_norm_quantizers* by,
                                     const float* mean, const float* inverse, float* y, float* largest) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        const QuantizedRows rows = {y,
                                    static_cast<uint8_t*>(by->q),
                                    by->clipped,
                                    static_cast<uint8_t*>(by->bytes),
                                    by->after_clipped,
                                    largest};
        std::atomic<int64_t> nan_count{0};
        parallel_channels(of->layout, [&](Channels channels) {
            nan_count += own.quantized_rows(*of, channels, mean, inverse, *by, rows);
        });
        return nan_count.load();
    });
}

int64_t lowbit_quantized_norm_forward(const lowbit_batch_norm* of, const lowbit_norm_quantizers* by,
                                      float* mean, float* inverse, float* running_mean,
                                      float* running_variance, float* y, float* largest) {
    return lowbit::guarded([&]() -> int64_t {
        thread_local Scratch of_channels, activated;
        const Kernels& own = kernels();
        const int64_t count = of->layout.outer * of->layout.channels * of->layout.inner;
        float* ends = of_channels.get<float>(2 * of->layout.channels);
        parallel_channels(of->layout, [&](Channels channels) {
            own.statistics_and_ends(*of, channels, {mean, inverse, running_mean, running_variance}, ends);
        });
        if (by->before) {
            lowbit::observe_range(range_before_activation(ends, of->layout.channels, *by->before),
                                  *by->before);
        }
        const float range = by->after ? range_after_activation(ends, *of, *by) : 0;
        if (std::isfinite(range)) {
            if (by->after) lowbit::observe_range(range, *by->after);
            return checked(lowbit_quantized_norm_values(of, by, mean, inverse, y, largest));
        }
        lowbit_norm_quantizers first = *by;
        first.after = nullptr;
        float* values = activated.get<float>(count);
        checked(lowbit_quantized_norm_values(of, &first, mean, inverse, values, nullptr));
        return checked(lowbit_observe_and_mark(values, y, by->bytes, by->after_clipped, count, by->after));
    });
}

int lowbit_quantized_norm_backward(const lowbit_batch_norm* of, const lowbit_norm_quantizers* by,
                                   const float* mean, const float* inverse, const float* dy, float* dx,
                                   float* dweight, float* dbias, float* dbound, float* after_dbound) {
    return lowbit::guarded([&] {
        thread_local Scratch of_channels;
        const lowbit_layout layout = of->layout;
        double* sums = of_channels.get<double>(2 * layout.channels);
        for (int64_t c = 0; c < 2 * layout.channels; ++c) sums[c] = 0;
        const QuantizedMarks marks = {static_cast<const uint8_t*>(by->q), by->clipped, by->after_clipped};
        const Backward as_it_is = {*of, nullptr, nullptr, mean, inverse, dx, nullptr};
        const Backward in = by->before ? as_it_is.after_activation(dx) : as_it_is;
        const Kernels& own = kernels();
        parallel_channels(layout, [&](Channels channels) {
            thread_local Scratch memory;
            float* scratch = memory.get<float>(4 * layout.inner);
            float common[lowbit::norm::kMaxChannels], slope[lowbit::norm::kMaxChannels];
            const ChannelTerms terms = {common, slope};
            own.quantized_backward_sums(in, channels, dy, marks, *by, of->activation, dx, dweight, dbias,
                                        dbound ? sums : nullptr,
                                        after_dbound ? sums + layout.channels : nullptr, terms, scratch);
            for (int64_t image = 0; image < layout.outer; ++image) {
                const int64_t row = image * layout.channels + channels.first;
                own.backward_rows(in, channels, image, terms, dx + row * layout.inner, nullptr, scratch);
            }
        });
        double total = 0, after_total = 0;  // channel by channel: the same for every number of threads
        for (int64_t c = 0; c < layout.channels; ++c)
            total += sums[c], after_total += sums[layout.channels + c];
        if (dbound) *dbound = float(total);
        if (after_dbound) *after_dbound = float(after_total);
    });
}

int lowbit_relu_forward(const float* x, float* y, uint8_t* bits, int64_t count) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        parallel_chunks(
            count, [&](int64_t at, int64_t size) { own.relu_forward(x + at, y + at, bits + at / 8, size); });
    });
}

int lowbit_relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        parallel_chunks(count, [&](int64_t at, int64_t size) {
            own.relu_backward(dy + at, bits + at / 8, dx + at, size);
        });
    });
}

int lowbit_hardswish_forward(const float* x, float* y, int64_t count) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        parallel_chunks(count,
                        [&](int64_t at, int64_t size) { own.hardswish_forward(x + at, y + at, size); });
    });
}

int lowbit_hardswish_backward(const float* x, const float* dy, float* dx, int64_t count) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        parallel_chunks(
            count, [&](int64_t at, int64_t size) { own.hardswish_backward(x + at, dy + at, dx + at, size); });
    });
}

int lowbit_channel_product_forward(const float* x, const float* scale, float* y, int64_t rows,
                                   int64_t inner) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        lowbit::parallel_ranges(rows, inner, [&](int64_t first, int64_t last) {
            own.channel_product(x + first * inner, scale + first, y + first * inner, last - first, inner);
        });
    });
}

int lowbit_channel_product_backward(const float* x, const float* scale, const float* dy, float* dx,
                                    float* dscale, int64_t rows, int64_t inner) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        lowbit::parallel_ranges(rows, inner, [&](int64_t first, int64_t last) {
            const int64_t at = first * inner;
            own.channel_product_backward(x + at, scale + first, dy + at, dx + at, dscale + first,
                                         last - first, inner);
        });
    });
}

int lowbit_max_pool_forward(const float* x, float* y, uint8_t* places, const lowbit_pool* of) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        const int64_t in = of->height * of->width, out = of->out_height * of->out_width;
        lowbit::parallel_for(of->planes, [&](int64_t plane) {
            thread_local Scratch best, at;
            const int64_t parts = of->height * of->out_width;
            own.max_pool_forward(x + plane * in, y + plane * out, places + plane * out, *of,
                                 best.get<float>(parts), at.get<int32_t>(parts));
        });
    });
}

int lowbit_max_pool_backward(const float* dy, const uint8_t* places, float* dx, const lowbit_pool* of) {
    return lowbit::guarded([&] {
        const Kernels& own = kernels();
        const int64_t in = of->height * of->width, out = of->out_height * of->out_width;
        lowbit::parallel_for(of->planes, [&](int64_t plane) {
            own.max_pool_backward(dy + plane * out, places + plane * out, dx + plane * in, *of);
        });
    });
}
