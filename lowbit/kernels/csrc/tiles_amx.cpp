// The inner loops with AMX: sixteen pixels times sixteen channels in a tile; see amx.h.
//
// A tile's rows are equally far from each other in memory, which pixels are along a row of an image, but not from
// its last to the next row's first: what lies between is computed with them and left out. With padding of one
// pixel that are two of sixteen.
#include "tiles.h"

#if LOWBIT_AMX
#include "amx.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lowbit::conv {
namespace {

using amx::Left;

// A tile's pixels: some of its rows, in order.
struct Cover {
    int64_t first, pixels;  // of the strip
    bool gaps;
    uint8_t rows[amx::kRows];
};

// As many of the pixels from `first` on as lie in one tile.
inline Cover cover(const int64_t* places, int64_t first, int64_t end, int64_t apart) {
    const int64_t *place = places + first, left = end - first;
    Cover found{first, amx::kRows, false, {}};
    if (left >= amx::kRows && place[amx::kRows - 1] == place[0] + (amx::kRows - 1) * apart) return found;
    int64_t pixels = 0;
    for (int64_t row = 0; row < amx::kRows && pixels < left; row++) {
        if (place[pixels] != place[0] + row * apart) continue;
        found.gaps |= row != pixels;
        found.rows[pixels++] = static_cast<uint8_t>(row);
    }
    found.pixels = pixels;
    return found;
}

template <int kLefts, int kRights, int kTile = 0>
LOWBIT_AMX_INLINE void begin(const Strip& strip) {
    amx::load<kTile>(strip.start + kTile % kRights * kPanel, 0);  // the same in every row
    if constexpr (kTile + 1 < kLefts * kRights) begin<kLefts, kRights, kTile + 1>(strip);
}

template <int kLefts, int kRights, int kTile = 0>
LOWBIT_AMX_INLINE void end(const Strip& strip, const Cover (&covers)[kLefts]) {
    constexpr int64_t kRow = kPanel * sizeof(int32_t);
    const Cover& c = covers[kTile / kRights];
    int32_t* to = strip.sums + kTile % kRights * kPanelOfSums + c.first * kPanel;
    if (c.gaps) {
        alignas(64) int32_t rows[amx::kRows * kPanel];
        amx::store<kTile>(rows, kRow);
        for (int64_t i = 0; i < c.pixels; i++) memcpy(to + i * kPanel, rows + c.rows[i] * kPanel, kRow);
    } else {
        amx::store<kTile>(to, kRow);  // what is behind the pixels is overwritten by those of the next tile
    }
    if constexpr (kTile + 1 < kLefts * kRights) end<kLefts, kRights, kTile + 1>(strip, covers);
}

template <int kLefts, int kRights>
LOWBIT_AMX_INLINE void sum_up(const Strip& strip, const Cover* found) {
    Cover covers[kLefts];
    Left lefts[kLefts];
    for (int i = 0; i < kLefts; i++) {
        covers[i] = found[i];
        lefts[i] = {strip.source + strip.places[found[i].first], strip.apart};
    }
    begin<kLefts, kRights>(strip);
    const uint8_t* panel = strip.panel;
    for (int64_t s = 0; s < strip.count; s++) {
        const Segment& segment = strip.segments[s];
        panel = amx::add_words<kLefts, kRights>(lefts, panel, strip.panel_bytes, segment.offset, segment.steps,
                                                strip.tail);
    }
    end<kLefts, kRights>(strip, covers);
}

// As many tiles of pixels together as make four of sums.
template <int kMost, class Sum>
LOWBIT_AMX_INLINE void for_tiles(const Strip& strip, Sum sum) {
    for (int64_t p = 0; p < strip.pixels;) {
        Cover covers[kMost];
        int count = 0;
        for (; count < kMost && p < strip.pixels; count++) {
            covers[count] = cover(strip.places, p, strip.pixels, strip.apart);
            p += covers[count].pixels;
        }
        sum(covers, count);
    }
}

// Clocks of one instruction for every sum of some tiles of pixels and so many panels: 16, and 52 until its result
// is there for the next.
int64_t clocks_of(int64_t tiles, int64_t panels) { return std::max<int64_t>(52, 16 * tiles * panels); }

// Of one step of a tile for all pixels of a part, in strips of so many.
int64_t clocks_of(const Pattern& part, int64_t strip) {
    constexpr int64_t kEnough = 1024;  // pixels, to see what rows do
    const int64_t panels = std::min(part.panels, kMostPanels), most = 4 / panels, all = std::min(part.pixels, kEnough);
    int64_t clocks = 0;
    for (int64_t first = 0; first < all; first += strip) {
        int64_t tiles = 0;
        const int64_t end = std::min(first + strip, all);
        for (int64_t p = first; p < end; tiles++) p += cover(part.places, p, end, part.apart).pixels;
        clocks += tiles / most * clocks_of(most, panels) + (tiles % most ? clocks_of(tiles % most, panels) : 0);
    }
    return clocks * part.pixels / all;
}

}  // namespace

Tiles choose_amx(const Tiles& vnni, const std::vector<Pattern>& parts) {
    constexpr int64_t kStrips[] = {64, 56, 48};
    Tiles best{vnni.panels, run_two_panels_amx, run_bytes_amx, 0, 0, true, 0};
    for (const Pattern& part : parts) {
        for (int64_t steps : part.steps) best.tail = std::gcd(best.tail, steps % amx::kWords);
    }
    int64_t least = 0;
    for (const Pattern& part : parts) {
        // VNNI starts two steps of a pixel in a clock.
        const int64_t steps = std::accumulate(part.steps.begin(), part.steps.end(), int64_t{0});
        least += part.pixels * steps * std::min(part.panels, kMostPanels) / 2;
    }
    for (int64_t strip : kStrips) {
        int64_t clocks = 0;
        for (const Pattern& part : parts) {
            int64_t instructions = 0;
            for (int64_t steps : part.steps) {
                instructions += steps / amx::kWords + (best.tail ? steps % amx::kWords / best.tail : 0);
            }
            clocks += instructions * clocks_of(part, strip);
        }
        if (clocks >= least) continue;
        least = clocks;
        best.pixels = strip;
    }
    return best.pixels ? best : vnni;
}

LOWBIT_AMX_TARGET void run_bytes_amx(const Strip& strip) {
    for_tiles<4>(strip, [&](const Cover* covers, int count) LOWBIT_AMX_TARGET {
        if (count == 4) return sum_up<4, 1>(strip, covers);
        if (count == 3) return sum_up<3, 1>(strip, covers);
        if (count == 2) return sum_up<2, 1>(strip, covers);
        sum_up<1, 1>(strip, covers);
    });
}

LOWBIT_AMX_TARGET void run_two_panels_amx(const Strip& strip) {
    for_tiles<2>(strip, [&](const Cover* covers, int count) LOWBIT_AMX_TARGET {
        if (count == 2) return sum_up<2, 2>(strip, covers);
        sum_up<1, 2>(strip, covers);
    });
}

}  // namespace lowbit::conv
#endif
