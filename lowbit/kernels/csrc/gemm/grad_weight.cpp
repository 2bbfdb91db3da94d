// grad_weight: the plan, and the loops over blocks of dw.
//
// Both operands are packed once. Then blocks of dw, some input channels times some panels of outputs, are
// computed in parallel, each over all images. Blocks are independent and sums are exact, so that the division
// does not change results.
#include "gemm/grad_weight.h"

#include "common/scratch.h"
#include "common/threads.h"
#include "gemm/amx.h"

#include <optional>

namespace lowbit::wgrad {

namespace {

int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// A 1x1 kernel that sees every pixel once does not depend on rows: one long row makes long loops.
lowbit_geometry flatten_pointwise(lowbit_geometry g) {
    const bool plain = g.kernel_h == 1 && g.kernel_w == 1 && g.stride_h == 1 && g.stride_w == 1 &&
                       !(g.pad_top | g.pad_bottom | g.pad_left | g.pad_right);
    if (plain) {
        g.width *= g.height;
        g.height = 1;
    }
    return g;
}

ColumnSpan span(const Plan& plan, int64_t phase) {
    const int64_t stride = plan.g.stride_w, before = plan.g.pad_left - phase, end = plan.g.width + before;
    int64_t first = before > 0 ? ceil_div(before, stride) : 0, last = end > 0 ? ceil_div(end, stride) : 0;
    if (last > plan.columns()) last = plan.columns();
    if (first > last) first = last;
    return {first, last, false};
}

// Rows of an AMX tile: 16 channels, or fewer where the channels divide evenly into as many tiles.
int64_t balanced_rows(int64_t channels) { return ceil_div(channels, ceil_div(channels, 16)); }

// An AMX instruction takes 16 cycles for up to 16 words, and loading and storing a tile of sums 32; VNNI
// multiplies two words of a channel per cycle.
bool amx_is_faster(const ReductionLoops& reduction, int64_t channels) {
    const int64_t runs = reduction.sets * reduction.rows;
    return 16 * ceil_div(reduction.words, 16) * runs + 32 <
           balanced_rows(channels) * reduction.words * runs / 2;
}

}  // namespace

ReductionLoops::ReductionLoops(const Plan& plan)
    : sets(plan.by_sample ? 1 : plan.sets),
      rows(plan.set_rows),
      words(plan.words),
      x_set(plan.set_bytes),
      x_row(plan.g.stride_h * plan.row_bytes) {
    if (rows == 1) {  // sets are then consecutive rows
        rows = sets;
        x_row = x_set;
        sets = 1;
    }
    if (x_row == words * kWord) {
        words *= rows;
        rows = 1;
    }
}

Plan::Plan(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& x)
    : g(flatten_pointwise(geometry)) {
    out_h = (g.height + g.pad_top + g.pad_bottom - g.dilation_h * (g.kernel_h - 1) - 1) / g.stride_h + 1;
    out_w = (g.width + g.pad_left + g.pad_right - g.dilation_w * (g.kernel_w - 1) - 1) / g.stride_w + 1;
    group_channels = g.channels / g.groups;
    group_outputs = g.outputs / g.groups;
    taps = g.kernel_h * g.kernel_w;
    x_signed = x.lowest < 0;
    dy_signed = dy.lowest < 0;
    by_sample = (dy.of_n != 0 || x.of_n != 0) && g.batch > 1;

    // As bytes, x has an offset that makes it [0, max_x], and dy is signed. vpmaddubsw adds two products of
    // at most max_x * max_dy: int16 holds `budget` words. A lane of int32 gets `lanes` products per word and
    // holds `limit` words. Padding makes 0 a value of both operands.
    const int64_t below = x_signed ? -int64_t(x.lowest) : 0;
    int64_t max_x = max_of(1, max_of(x.highest, 0) + below);
    const int64_t max_dy = max_of(1, max_of(dy.highest, -int64_t(dy.lowest)));
    budget = 32767 / (2 * max_x * max_dy);
    isa = instruction_set();
    const bool vnni = isa == InstructionSet::avxvnni || isa >= InstructionSet::avx512vnni;
    if (isa == InstructionSet::baseline || dy.highest > 127 || (!vnni && budget == 0)) {
        method = Method::int16;
    } else if (vnni) {
        method = Method::vnni;
    } else {
        // Flushing int16 sums costs as much as one word: with a budget of up to 3, widening every word is
        // faster.
        method = budget > 3 ? Method::int8_acc16 : Method::int8_acc32;
    }
    lanes = method == Method::int16 ? 2 : 4;
    zero = method == Method::int16 ? 0 : int32_t(below);
    limit = INT32_MAX / (lanes * max_x * max_dy);
    tile_channels = max_kernel_channels(method, isa);
    tile_panels = method == Method::vnni && isa >= InstructionSet::avx512vnni ? 2 : 1;

    // The lanes that pad the fewest words. On a tie, images or strips, because with several taps the words of
    // pixels are not aligned to words; with one tap they are, and pack faster.
    const int64_t by_images = ceil_div(g.batch, lanes) * out_h * out_w,
                  by_strips = g.batch * ceil_div(out_h, lanes) * out_w;
    const int64_t by_pixels = g.batch * out_h * ceil_div(out_w, lanes) - (taps == 1 ? 1 : 0);
    if (!by_sample && by_images <= by_strips && by_images <= by_pixels) {
        lanes_are = Lanes::images;
    } else {
        lanes_are = by_strips <= by_pixels ? Lanes::strips : Lanes::pixels;
    }
    sets = lanes_are == Lanes::images ? ceil_div(g.batch, lanes) : g.batch;
    set_rows = lanes_are == Lanes::strips ? ceil_div(out_h, lanes) : out_h;
    words = lanes_are == Lanes::pixels ? ceil_div(out_w, lanes) : out_w;

    pixel = lanes_are == Lanes::pixels ? kWord / lanes : kWord;
    // Columns of one remainder that taps reach beyond a pixel.
    const int64_t reach = (g.kernel_w - 1) * g.dilation_w / g.stride_w;
    phase_bytes = words * kWord + reach * pixel;
    row_bytes = g.stride_w * phase_bytes;
    rows = (set_rows - 1) * g.stride_h + (g.kernel_h - 1) * g.dilation_h + 1;
    set_bytes = rows * row_bytes;
    // Space for the last chunk. It also puts the channels of a tile into different cache sets.
    channel_bytes = sets * set_bytes + kChunk;
    panels = ceil_div(group_outputs, kPanel);
    panel_bytes = sets * set_rows * words * kPanel * kWord;
    const ReductionLoops reduction(*this);
    tail = reduction.words % 16;
    if (isa == InstructionSet::amx && method == Method::vnni && amx_is_faster(reduction, group_channels)) {
        method = Method::amx;
        tile_channels = balanced_rows(group_channels);
        // A tap misaligns x with the cache lines, so that loading it once for four panels is better. Where
        // sums are scaled for every sample, as few as possible, so that they stay in the L1 cache.
        if (!by_sample) tile_panels = kMaxPanels;
    }

    zeros.resize(g.width + kChunk);
    used_rows.resize(rows);
    for (int64_t k = 0; k < g.kernel_h; ++k) {
        for (int64_t row = k * g.dilation_h; row < rows; row += g.stride_h) used_rows[row] = true;
    }
    for (int64_t phase = 0; phase < g.stride_w; ++phase) spans.push_back(span(*this, phase));
    for (int64_t k = 0; k < g.kernel_w; ++k) spans[k * g.dilation_w % g.stride_w].used = true;
}

int64_t Plan::tap_offset(int64_t tap) const {
    const int64_t row = tap / g.kernel_w * g.dilation_h, column = tap % g.kernel_w * g.dilation_w;
    return row * row_bytes + column % g.stride_w * phase_bytes + column / g.stride_w * pixel;
}

namespace {

// Bytes of a block's sums: the L2 cache holds them, or the L1 cache where they are scaled for every sample.
constexpr int64_t kBlockBytes = 128 * 1024, kSampleBytes = 16 * 1024;

// The size of the pieces when `whole` is divided evenly into pieces of at most `largest`.
int64_t even_split(int64_t whole, int64_t largest) {
    const int64_t pieces = ceil_div(whole, largest);
    return pieces ? ceil_div(whole, pieces) : 1;
}

// Input channels and panels of outputs of one group that are computed together.
struct OutputBlock {
    int64_t group, channel, channels, panel, panels;
};

class GradWeight {
  public:
    GradWeight(const Plan& plan, const Passes& loops, const lowbit_operand& dy, const lowbit_operand& x)
        : plan_(plan), passes_(loops), dy_(dy), x_(x), reduction_(plan) {
        for (int64_t tap = 0; tap < plan.taps; ++tap) tap_offsets_.push_back(plan.tap_offset(tap));
    }

    void pack() {
        thread_local Scratch x_memory, dy_memory, shift_memory;
        packed_x_ = x_memory.get<uint8_t>(plan_.x_bytes());
        packed_dy_ = dy_memory.get<uint8_t>(plan_.dy_bytes());
        dy_sums_ = shift_memory.get<int64_t>((plan_.by_sample ? plan_.g.batch : 1) * plan_.g.outputs);
        parallel_for(plan_.g.channels, [&](int64_t c) {
            passes_.pack_x(plan_, static_cast<const uint8_t*>(x_.integers), c,
                           packed_x_ + c * plan_.channel_bytes);
        });
        parallel_for(plan_.g.groups * plan_.panels, [&](int64_t panel) {
            uint8_t* to = packed_dy_ + panel * plan_.panel_bytes;
            passes_.pack_dy(plan_, static_cast<const uint8_t*>(dy_.integers), panel, to);
        });
        if (plan_.zero) passes_.sum_dy(plan_, static_cast<const uint8_t*>(dy_.integers), dy_sums_);
    }

    void compute(const OutputBlock& r, float* dw, int64_t* sums) const {
        thread_local Scratch narrow_memory, wide_memory, value_memory, scale_memory;
        const int64_t width = r.panels * kPanel, rows = r.channels * plan_.taps;
        const int64_t size = round_up(r.channels, plan_.channel_multiple()) * plan_.taps * width;
        const bool wide = sums || reduction_.sets * reduction_.rows * reduction_.words > plan_.limit;
        const Sums s = {narrow_memory.get<int32_t>(size), wide_memory.get<int64_t>(wide ? size : 1)};
        float* values = value_memory.get<float>(size);
        float* scale_x = scale_memory.get<float>(r.channels);
        for (int64_t i = 0; i < size; ++i) s.narrow[i] = 0;
        for (int64_t i = 0; wide && i < size; ++i) s.wide[i] = 0;
        const int64_t outputs = at_most(plan_.group_outputs - r.panel * kPanel, width);
        const int64_t output = r.group * plan_.group_outputs + r.panel * kPanel;
        const int64_t channel = r.group * plan_.group_channels + r.channel;
        for (int64_t n = 0; n < (plan_.by_sample ? plan_.g.batch : 1); ++n) {
            accumulate(r, n, s);
            int64_t shift[kMaxPanels * kPanel] = {};
            for (int64_t o = 0; plan_.zero && o < outputs; ++o) {
                shift[o] = -int64_t(plan_.zero) * dy_sums_[n * plan_.g.outputs + output + o];
            }
            if (wide) passes_.flush(s.narrow, s.wide, shift, rows, width);
            if (sums) continue;
            float scale_dy[kMaxPanels * kPanel] = {};
            for (int64_t o = 0; o < outputs; ++o) {
                scale_dy[o] = dy_.scale[n * dy_.of_n + (output + o) * dy_.of_c];
            }
            for (int64_t c = 0; c < r.channels; ++c) {
                scale_x[c] = x_.scale[n * x_.of_n + (channel + c) * x_.of_c];
            }
            const int64_t none[kMaxPanels * kPanel] = {};
            if (wide) {
                passes_.scale_wide(s.wide, none, scale_dy, scale_x, values, n > 0, r.channels, plan_.taps,
                                   width);
            } else {
                passes_.scale_narrow(s.narrow, shift, scale_dy, scale_x, values, n > 0, r.channels,
                                     plan_.taps, width);
            }
        }
        const int64_t one = plan_.group_channels * plan_.taps;  // weights of one output
        const int64_t start = output * one + r.channel * plan_.taps;
        if (sums) {
            passes_.store_sums(s.wide, rows, width, sums + start, one, outputs);
        } else {
            passes_.store_values(values, rows, width, dw + start, one, outputs);
        }
    }

  private:
    struct Sums {
        int32_t* narrow;
        int64_t* wide;
    };

    static int64_t at_most(int64_t left, int64_t largest) { return left < largest ? left : largest; }

    // Sums over all images, or over sample n, block by block, so that words of dy stay in the L1 cache while
    // all channels and taps use them.
    void accumulate(const OutputBlock& r, int64_t n, const Sums& s) const {
        const int64_t none[kMaxPanels * kPanel] = {};
        // For AMX, only the last block may have a tail.
        const int64_t some_words =
            round_up(even_split(reduction_.words, kBlockWords), plan_.method == Method::amx ? 16 : 1);
        const int64_t some_rows =
            even_split(reduction_.rows, reduction_.words > kBlockWords ? 1 : kBlockWords / reduction_.words);
        const uint8_t* dy = packed_dy_ + (r.group * plan_.panels + r.panel) * plan_.panel_bytes;
        const uint8_t* x = packed_x_ + (r.group * plan_.group_channels + r.channel) * plan_.channel_bytes;
        if (plan_.by_sample) {
            dy += n * (plan_.panel_bytes / plan_.sets);
            x += n * plan_.set_bytes;
        }
        int64_t done = 0;  // words since the int32 sums were last flushed
        for (int64_t set = 0; set < reduction_.sets; ++set) {
            for (int64_t row = 0; row < reduction_.rows; row += some_rows) {
                for (int64_t word = 0; word < reduction_.words; word += some_words) {
                    const int64_t rows = at_most(reduction_.rows - row, some_rows);
                    const int64_t words = at_most(reduction_.words - word, some_words);
                    if (done + rows * words > plan_.limit) {
                        passes_.flush(s.narrow, s.wide, none, r.channels * plan_.taps, r.panels * kPanel);
                        done = 0;
                    }
                    done += rows * words;
                    accumulate_block(r, x + set * reduction_.x_set + row * reduction_.x_row + word * kWord,
                                     dy, rows, words, s.narrow);
                    dy += rows * words * kPanel * kWord;
                }
            }
        }
    }

    void accumulate_block(const OutputBlock& r, const uint8_t* x, const uint8_t* dy, int64_t rows,
                          int64_t words, int32_t* sums) const {
        KernelArgs args = {};
        args.x_channel = plan_.channel_bytes;
        args.x_row = reduction_.x_row;
        args.dy = dy;
        args.dy_panel = plan_.panel_bytes;
        args.rows = rows;
        args.words = words;
        args.budget = plan_.budget;
        args.sums_channel = plan_.taps * r.panels * kPanel;
#if LOWBIT_AMX
        if (plan_.method == Method::amx) return accumulate_block_amx(r, x, args, sums);
#endif
        const int64_t tiles = (r.channels + plan_.tile_channels - 1) / plan_.tile_channels;
        int64_t c = 0;
        for (int64_t i = 0; i < tiles; ++i) {
            const int64_t channels = (r.channels - c) / (tiles - i);  // evenly
            const KernelFunction add = kernel_function(plan_.method, plan_.isa, channels, r.panels);
            for (int64_t tap = 0; tap < plan_.taps; ++tap) {
                args.x = x + c * plan_.channel_bytes + tap_offsets_[tap];
                args.sums = sums + (c * plan_.taps + tap) * r.panels * kPanel;
                add(args);
            }
            c += channels;
        }
    }

#if LOWBIT_AMX
    // Taps and channels both count as tiles here: four tiles of sums at a time.
    void accumulate_block_amx(const OutputBlock& r, const uint8_t* x, const KernelArgs& args,
                              int32_t* sums) const {
        const int64_t together = 4 / r.panels,
                      all = round_up(r.channels, plan_.tile_channels) / plan_.tile_channels;
        const uint8_t* from[4];
        int32_t* to[4];
        int64_t count = 0;
        for (int64_t i = 0; i < all * plan_.taps; ++i) {
            const int64_t c = i / plan_.taps * plan_.tile_channels, tap = i % plan_.taps;
            from[count] = x + c * plan_.channel_bytes + tap_offsets_[tap];
            to[count++] = sums + (c * plan_.taps + tap) * r.panels * kPanel;
            if (count < together && i + 1 < all * plan_.taps) continue;
            accumulate_amx(args, from, to, count, r.panels, plan_.tail);
            count = 0;
        }
    }
#endif

    const Plan& plan_;
    const Passes& passes_;
    const lowbit_operand& dy_;
    const lowbit_operand& x_;
    ReductionLoops reduction_;
    std::vector<int64_t> tap_offsets_;
    uint8_t* packed_x_ = nullptr;
    uint8_t* packed_dy_ = nullptr;
    int64_t* dy_sums_ = nullptr;
};

}  // namespace

void run(const Plan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw, int64_t* sums) {
    GradWeight gradient(plan, passes_for(plan.isa), dy, x);
    gradient.pack();
    const int64_t bytes = plan.by_sample ? kSampleBytes : kBlockBytes;
    const int64_t max_channels = bytes / (plan.taps * plan.tile_panels * kPanel * int64_t(sizeof(int32_t)));
    const int64_t bundles = (plan.panels + plan.tile_panels - 1) / plan.tile_panels;
    const int64_t wanted = lowbit_threads() > 1 ? kItemsPerThread * lowbit_threads() : 1;
    const int64_t shared = plan.group_channels * plan.g.groups * bundles / wanted;
    const int64_t limit = max_channels < shared ? max_channels : shared;
    const int64_t fit =
        even_split(plan.group_channels, limit > plan.tile_channels ? limit : plan.tile_channels);
    const int64_t channels = round_up(fit, plan.channel_multiple());
    const int64_t pieces = (plan.group_channels + channels - 1) / channels;
    parallel_for(plan.g.groups * bundles * pieces, [&](int64_t item) {
        const int64_t channel = item % pieces * channels, panel = item / pieces % bundles * plan.tile_panels;
        OutputBlock r = {item / pieces / bundles, channel, channels, panel, plan.tile_panels};
        if (r.channels > plan.group_channels - channel) r.channels = plan.group_channels - channel;
        if (r.panels > plan.panels - panel) r.panels = plan.panels - panel;
#if LOWBIT_AMX
        std::optional<amx::TileConfig> tile_config;
        if (plan.method == Method::amx) tile_config.emplace(plan.tile_channels, plan.tail);
#endif
        gradient.compute(r, dw, sums);
    });
}

}  // namespace lowbit::wgrad
