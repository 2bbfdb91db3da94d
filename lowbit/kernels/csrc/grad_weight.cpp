// The weight's gradient: both operands packed once, then one rectangle of dw after the other, each from all
// images. Rectangles have nothing in common and sums are exact, so it does not matter who works out which.
#include "amx.h"
#include "depthwise.h"
#include "grad_weight_loops.h"
#include "grad_weight_tiles.h"
#include "layout.h"
#include "room.h"
#include "threads.h"
#include "winograd.h"

#include <optional>

namespace lowbit::weight {

namespace {

using conv::up_to;

// Of sums, and of values: they stay in the second cache; in the first where they are scaled with every sample.
constexpr int64_t kRectangleBytes = 128 * 1024, kSampleBytes = 16 * 1024;

// A piece of `whole` that is at most `most`, the pieces being about alike.
int64_t piece(int64_t whole, int64_t most) {
    const int64_t pieces = (whole + most - 1) / most;
    return pieces ? (whole + pieces - 1) / pieces : 1;
}

// The channels of x and the panels of dy, of one group, that are worked out together.
struct Rectangle {
    int64_t group, channel, channels, panel, panels;
};

class Product {
  public:
    Product(const WeightPlan& plan, const WeightLoops& loops, const lowbit_operand& dy, const lowbit_operand& x)
        : plan_(plan), loops_(loops), dy_(dy), x_(x), walk_(plan) {
        for (int64_t tap = 0; tap < plan.taps; ++tap) tap_offsets_.push_back(plan.tap_offset(tap));
    }

    void pack() {
        thread_local Room x_memory, dy_memory, shift_memory;
        packed_x_ = x_memory.of<uint8_t>(plan_.x_bytes());
        packed_dy_ = dy_memory.of<uint8_t>(plan_.dy_bytes());
        dy_sums_ = shift_memory.of<int64_t>((plan_.by_sample ? plan_.g.batch : 1) * plan_.g.outputs);
        parallel_for(plan_.g.channels, [&](int64_t c) {
            loops_.pack_x(plan_, static_cast<const uint8_t*>(x_.integers), c, packed_x_ + c * plan_.channel_bytes);
        });
        parallel_for(plan_.g.groups * plan_.panels, [&](int64_t panel) {
            uint8_t* to = packed_dy_ + panel * plan_.panel_bytes;
            loops_.pack_dy(plan_, static_cast<const uint8_t*>(dy_.integers), panel, to);
        });
        if (plan_.zero) loops_.sum_dy(plan_, static_cast<const uint8_t*>(dy_.integers), dy_sums_);
    }

    void work_out(const Rectangle& r, float* dw, int64_t* sums) const {
        thread_local Room narrow_memory, wide_memory, value_memory, scale_memory;
        const int64_t width = r.panels * kPanel, rows = r.channels * plan_.taps;
        const int64_t size = up_to(r.channels, plan_.whole_channels()) * plan_.taps * width;
        const bool wide = sums || walk_.sets * walk_.rows * walk_.words > plan_.limit;
        const Sums s = {narrow_memory.of<int32_t>(size), wide_memory.of<int64_t>(wide ? size : 1)};
        float* values = value_memory.of<float>(size);
        float* scale_x = scale_memory.of<float>(r.channels);
        for (int64_t i = 0; i < size; ++i) s.narrow[i] = 0;
        for (int64_t i = 0; wide && i < size; ++i) s.wide[i] = 0;
        const int64_t outputs = left(plan_.group_outputs - r.panel * kPanel, width);
        const int64_t output = r.group * plan_.group_outputs + r.panel * kPanel;
        const int64_t channel = r.group * plan_.group_channels + r.channel;
        for (int64_t n = 0; n < (plan_.by_sample ? plan_.g.batch : 1); ++n) {
            add_up(r, n, s);
            int64_t shift[kMostPanels * kPanel] = {};
            for (int64_t o = 0; plan_.zero && o < outputs; ++o) {
                shift[o] = -int64_t(plan_.zero) * dy_sums_[n * plan_.g.outputs + output + o];
            }
            if (wide) loops_.empty(s.narrow, s.wide, shift, rows, width);
            if (sums) continue;
            float scale_dy[kMostPanels * kPanel] = {};
            for (int64_t o = 0; o < outputs; ++o) scale_dy[o] = dy_.scale[n * dy_.of_n + (output + o) * dy_.of_c];
            for (int64_t c = 0; c < r.channels; ++c) scale_x[c] = x_.scale[n * x_.of_n + (channel + c) * x_.of_c];
            const int64_t none[kMostPanels * kPanel] = {};
            if (wide) {
                loops_.scale_wide(s.wide, none, scale_dy, scale_x, values, n > 0, r.channels, plan_.taps, width);
            } else {
                loops_.scale_narrow(s.narrow, shift, scale_dy, scale_x, values, n > 0, r.channels, plan_.taps, width);
            }
        }
        const int64_t one = plan_.group_channels * plan_.taps;  // output's weights
        const int64_t start = output * one + r.channel * plan_.taps;
        if (sums) {
            loops_.put_sums(s.wide, rows, width, sums + start, one, outputs);
        } else {
            loops_.put_values(values, rows, width, dw + start, one, outputs);
        }
    }

  private:
    struct Sums {
        int32_t* narrow;
        int64_t* wide;
    };

    static int64_t left(int64_t there, int64_t most) { return there < most ? there : most; }

    // The sums over all images, or over sample n: block by block, so that dy's words are in the first cache while
    // all channels and taps pass by them.
    void add_up(const Rectangle& r, int64_t n, const Sums& s) const {
        const int64_t none[kMostPanels * kPanel] = {};
        // Only the last has words that leave something over.
        const int64_t some_words = up_to(piece(walk_.words, kBlockWords), plan_.route == Route::amx ? 16 : 1);
        const int64_t some_rows = piece(walk_.rows, walk_.words > kBlockWords ? 1 : kBlockWords / walk_.words);
        const uint8_t* dy = packed_dy_ + (r.group * plan_.panels + r.panel) * plan_.panel_bytes;
        const uint8_t* x = packed_x_ + (r.group * plan_.group_channels + r.channel) * plan_.channel_bytes;
        if (plan_.by_sample) {
            dy += n * (plan_.panel_bytes / plan_.sets);
            x += n * plan_.set_bytes;
        }
        int64_t done = 0;  // words, since the sums of 32 bits were emptied
        for (int64_t set = 0; set < walk_.sets; ++set) {
            for (int64_t row = 0; row < walk_.rows; row += some_rows) {
                for (int64_t word = 0; word < walk_.words; word += some_words) {
                    const int64_t rows = left(walk_.rows - row, some_rows);
                    const int64_t words = left(walk_.words - word, some_words);
                    if (done + rows * words > plan_.limit) {
                        loops_.empty(s.narrow, s.wide, none, r.channels * plan_.taps, r.panels * kPanel);
                        done = 0;
                    }
                    done += rows * words;
                    add_block(r, x + set * walk_.x_set + row * walk_.x_row + word * kWord, dy, rows, words, s.narrow);
                    dy += rows * words * kPanel * kWord;
                }
            }
        }
    }

    void add_block(const Rectangle& r, const uint8_t* x, const uint8_t* dy, int64_t rows, int64_t words,
                   int32_t* sums) const {
        WeightTile tile = {};
        tile.x_channel = plan_.channel_bytes;
        tile.x_row = walk_.x_row;
        tile.dy = dy;
        tile.dy_panel = plan_.panel_bytes;
        tile.rows = rows;
        tile.words = words;
        tile.budget = plan_.budget;
        tile.sums_channel = plan_.taps * r.panels * kPanel;
#if LOWBIT_AMX
        if (plan_.route == Route::amx) return add_block_amx(r, x, tile, sums);
#endif
        const int64_t tiles = (r.channels + plan_.tile_channels - 1) / plan_.tile_channels;
        int64_t c = 0;
        for (int64_t i = 0; i < tiles; ++i) {
            const int64_t channels = (r.channels - c) / (tiles - i);  // about alike
            const TileFunction add = tile_function(plan_.route, plan_.set, channels, r.panels);
            for (int64_t tap = 0; tap < plan_.taps; ++tap) {
                tile.x = x + c * plan_.channel_bytes + tap_offsets_[tap];
                tile.sums = sums + (c * plan_.taps + tap) * r.panels * kPanel;
                add(tile);
            }
            c += channels;
        }
    }

#if LOWBIT_AMX
    // Taps are as good as channels here: whatever makes four tiles of sums.
    void add_block_amx(const Rectangle& r, const uint8_t* x, const WeightTile& tile, int32_t* sums) const {
        const int64_t together = 4 / r.panels, all = up_to(r.channels, plan_.tile_channels) / plan_.tile_channels;
        const uint8_t* from[4];
        int32_t* to[4];
        int64_t count = 0;
        for (int64_t i = 0; i < all * plan_.taps; ++i) {
            const int64_t c = i / plan_.taps * plan_.tile_channels, tap = i % plan_.taps;
            from[count] = x + c * plan_.channel_bytes + tap_offsets_[tap];
            to[count++] = sums + (c * plan_.taps + tap) * r.panels * kPanel;
            if (count < together && i + 1 < all * plan_.taps) continue;
            add_amx(tile, from, to, count, r.panels, plan_.tail);
            count = 0;
        }
    }
#endif

    const WeightPlan& plan_;
    const WeightLoops& loops_;
    const lowbit_operand& dy_;
    const lowbit_operand& x_;
    Walk walk_;
    std::vector<int64_t> tap_offsets_;
    uint8_t* packed_x_ = nullptr;
    uint8_t* packed_dy_ = nullptr;
    int64_t* dy_sums_ = nullptr;
};

void grad_weight(const WeightPlan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums) {
    Product product(plan, weight_loops(plan.set), dy, x);
    product.pack();
    const int64_t bytes = plan.by_sample ? kSampleBytes : kRectangleBytes;
    const int64_t most = bytes / (plan.taps * plan.tile_panels * kPanel * int64_t(sizeof(int32_t)));
    const int64_t bundles = (plan.panels + plan.tile_panels - 1) / plan.tile_panels;
    const int64_t wanted = lowbit_threads() > 1 ? kItemsPerThread * lowbit_threads() : 1;
    const int64_t shared = plan.group_channels * plan.g.groups * bundles / wanted;
    const int64_t limit = most < shared ? most : shared;
    const int64_t fit = piece(plan.group_channels, limit > plan.tile_channels ? limit : plan.tile_channels);
    const int64_t channels = up_to(fit, plan.whole_channels());
    const int64_t pieces = (plan.group_channels + channels - 1) / channels;
    parallel_for(plan.g.groups * bundles * pieces, [&](int64_t item) {
        const int64_t channel = item % pieces * channels, panel = item / pieces % bundles * plan.tile_panels;
        Rectangle r = {item / pieces / bundles, channel, channels, panel, plan.tile_panels};
        if (r.channels > plan.group_channels - channel) r.channels = plan.group_channels - channel;
        if (r.panels > plan.panels - panel) r.panels = plan.panels - panel;
#if LOWBIT_AMX
        std::optional<amx::Shapes> shapes;
        if (plan.route == Route::amx) shapes.emplace(plan.tile_channels, plan.tail);
#endif
        product.work_out(r, dw, sums);
    });
}

}  // namespace

}  // namespace lowbit::weight

int lowbit_grad_weight(const lowbit_geometry* geometry, const lowbit_operand* dy, const lowbit_operand* x, float* dw,
                       int64_t* sums) {
    using namespace lowbit::weight;
    try {
        if (lowbit::is_depthwise(*geometry)) {
            lowbit::depthwise_grad_weight(*geometry, *dy, *x, dw, sums);
            return 0;
        }
        const WeightPlan plan(*geometry, *dy, *x);
        if (lowbit::winograd::fits(plan, *dy, *x)) {
            lowbit::winograd::grad_weight(plan, *dy, *x, dw, sums);
        } else {
            grad_weight(plan, *dy, *x, dw, sums);
        }
    } catch (const std::bad_alloc&) {
        return -1;
    }
    return 0;
}
