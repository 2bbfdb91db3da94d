// The choices of the weight's gradient: see grad_weight_plan.h for what they mean.
#include "grad_weight_plan.h"

#include "grad_weight_tiles.h"

namespace lowbit::weight {

namespace {

int64_t up(int64_t value, int64_t step) { return (value + step - 1) / step; }

int64_t largest_of(int64_t a, int64_t b) { return a > b ? a : b; }

// A kernel of one pixel that sees every pixel once: rows do not matter.
lowbit_geometry in_one_row(lowbit_geometry g) {
    const bool plain = g.kernel_h == 1 && g.kernel_w == 1 && g.stride_h == 1 && g.stride_w == 1 &&
                       !(g.pad_top | g.pad_bottom | g.pad_left | g.pad_right);
    if (plain) {
        g.width *= g.height;
        g.height = 1;
    }
    return g;
}

Span span(const WeightPlan& plan, int64_t phase) {
    const int64_t stride = plan.g.stride_w, before = plan.g.pad_left - phase, end = plan.g.width + before;
    int64_t first = before > 0 ? up(before, stride) : 0, last = end > 0 ? up(end, stride) : 0;
    if (last > plan.columns()) last = plan.columns();
    if (first > last) first = last;
    return {first, last, false};
}

// Channels of a tile of AMX: 16 or, where there are not as many times 16, about as many in each.
int64_t alike(int64_t channels) { return up(channels, up(channels, 16)); }

// An instruction of AMX takes 16 clocks for up to 16 words; VNNI has two words of a channel in a clock.
bool amx_is_faster(const Walk& walk, int64_t channels) {
    return 16 * up(walk.words, 16) < alike(channels) * walk.words / 2;
}

}  // namespace

Walk::Walk(const WeightPlan& plan)
    : sets(plan.by_sample ? 1 : plan.sets), rows(plan.set_rows), words(plan.words), x_set(plan.set_bytes),
      x_row(plan.g.stride_h * plan.row_bytes) {
    if (rows == 1) {  // then sets are as good as rows
        rows = sets;
        x_row = x_set;
        sets = 1;
    }
    if (x_row == words * kWord) {
        words *= rows;
        rows = 1;
    }
}

WeightPlan::WeightPlan(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& x)
    : g(in_one_row(geometry)) {
    out_h = (g.height + g.pad_top + g.pad_bottom - g.dilation_h * (g.kernel_h - 1) - 1) / g.stride_h + 1;
    out_w = (g.width + g.pad_left + g.pad_right - g.dilation_w * (g.kernel_w - 1) - 1) / g.stride_w + 1;
    group_channels = g.channels / g.groups;
    group_outputs = g.outputs / g.groups;
    taps = g.kernel_h * g.kernel_w;
    x_signed = x.lowest < 0;
    dy_signed = dy.lowest < 0;
    by_sample = (dy.of_n != 0 || x.of_n != 0) && g.batch > 1;

    // As bytes, x is shifted to [0, most_x] and dy is signed. Every product is at most most_x * most_dy, so that
    // of vpmaddubsw, a sum of two, holds for `budget` words, and a lane of 32 bits, `lanes` products a word, for
    // `limit` words. Zeros are among the values of both: padding has them.
    const int64_t below = x_signed ? -int64_t(x.lowest) : 0;
    int64_t most_x = largest_of(1, largest_of(x.highest, 0) + below);
    const int64_t most_dy = largest_of(1, largest_of(dy.highest, -int64_t(dy.lowest)));
    budget = 32767 / (2 * most_x * most_dy);
    set = instruction_set();
    const bool vnni = set == InstructionSet::avxvnni || set >= InstructionSet::avx512vnni;
    if (set == InstructionSet::baseline || dy.highest > 127 || (!vnni && budget == 0)) {
        route = Route::pairs;
    } else if (vnni) {
        route = Route::vnni;
    } else {
        // Emptying the 16 bits costs as much as one word; where it would be every third, at once is cheaper.
        route = budget > 3 ? Route::narrow : Route::bytes;
    }
    lanes = route == Route::pairs ? 2 : 4;
    zero = route == Route::pairs ? 0 : int32_t(below);
    limit = INT32_MAX / (lanes * most_x * most_dy);
    tile_channels = widest_tile(route, set);
    tile_panels = route == Route::vnni && set >= InstructionSet::avx512vnni ? 2 : 1;

    // The lanes are what fills up fewer words with nothing. Where that is the same: images or strips, since with
    // several taps the words of pixels do not lie at words' places; with one tap they do, and pack faster.
    const int64_t by_images = up(g.batch, lanes) * out_h * out_w, by_strips = g.batch * up(out_h, lanes) * out_w;
    const int64_t by_pixels = g.batch * out_h * up(out_w, lanes) - (taps == 1 ? 1 : 0);
    if (!by_sample && by_images <= by_strips && by_images <= by_pixels) {
        lanes_are = Lanes::images;
    } else {
        lanes_are = by_strips <= by_pixels ? Lanes::strips : Lanes::pixels;
    }
    sets = lanes_are == Lanes::images ? up(g.batch, lanes) : g.batch;
    set_rows = lanes_are == Lanes::strips ? up(out_h, lanes) : out_h;
    words = lanes_are == Lanes::pixels ? up(out_w, lanes) : out_w;

    pixel = lanes_are == Lanes::pixels ? kWord / lanes : kWord;
    const int64_t reach = (g.kernel_w - 1) * g.dilation_w / g.stride_w;  // columns of a rest beyond a pixel's own
    phase_bytes = words * kWord + reach * pixel;
    row_bytes = g.stride_w * phase_bytes;
    rows = (set_rows - 1) * g.stride_h + (g.kernel_h - 1) * g.dilation_h + 1;
    set_bytes = rows * row_bytes;
    // Room for the last chunk, which also keeps the channels of a tile apart in the cache.
    channel_bytes = sets * set_bytes + kChunk;
    panels = up(group_outputs, kPanel);
    panel_bytes = sets * set_rows * words * kPanel * kWord;
    const Walk walk(*this);
    tail = walk.words % 16;
    if (set == InstructionSet::amx && route == Route::vnni && amx_is_faster(walk, group_channels)) {
        route = Route::amx;
        tile_channels = alike(group_channels);
        // A tap shifts x away from the lines of the cache, so it is better loaded once for four panels; but where
        // sums are scaled with every sample, as few as possible, so that they stay in the first cache.
        if (!by_sample) tile_panels = kMostPanels;
    }

    zeros.resize(g.width + kChunk);
    used_rows.resize(rows);
    for (int64_t k = 0; k < g.kernel_h; ++k) {
        for (int64_t row = k * g.dilation_h; row < rows; row += g.stride_h) used_rows[row] = true;
    }
    for (int64_t phase = 0; phase < g.stride_w; ++phase) spans.push_back(span(*this, phase));
    for (int64_t k = 0; k < g.kernel_w; ++k) spans[k * g.dilation_w % g.stride_w].used = true;
}

int64_t WeightPlan::tap_offset(int64_t tap) const {
    const int64_t row = tap / g.kernel_w * g.dilation_h, column = tap % g.kernel_w * g.dilation_w;
    return row * row_bytes + column % g.stride_w * phase_bytes + column / g.stride_w * pixel;
}

}  // namespace lowbit::weight
