// The inner loops with AMX: sixteen pixels times sixteen channels in a tile; see amx.h.
#include "tiles.h"

#if LOWBIT_AMX
#include "amx.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lowbit::conv {
namespace {

using amx::Left;

template <int kLefts, int kRights, int kTile = 0>
LOWBIT_AMX_INLINE void begin(const Strip& strip) {
    amx::load<kTile>(strip.start + kTile % kRights * kPanel, 0);  // the same in every row
    if constexpr (kTile + 1 < kLefts * kRights) begin<kLefts, kRights, kTile + 1>(strip);
}

template <int kLefts, int kRights, int kTile = 0>
LOWBIT_AMX_INLINE void end(const Strip& strip, const Cover* covers) {
    constexpr int64_t kRow = kPanel * sizeof(int32_t);
    const Cover& c = covers[kTile / kRights];
    int32_t* to = strip.sums + kTile % kRights * kPanelOfSums + c.pixel * kPanel;
    if (c.rows & (c.rows + 1)) {  // with gaps
        alignas(64) int32_t found[amx::kRows * kPanel];
        amx::store<kTile>(found, kRow);
        for (uint32_t rows = c.rows; rows; rows &= rows - 1, to += kPanel) {
            memcpy(to, found + __builtin_ctz(rows) * kPanel, kRow);
        }
    } else {
        amx::store<kTile>(to, kRow);  // what is behind the pixels is overwritten by those of the next tile
    }
    if constexpr (kTile + 1 < kLefts * kRights) end<kLefts, kRights, kTile + 1>(strip, covers);
}

template <int kLefts, int kRights>
LOWBIT_AMX_INLINE void sum_up(const Strip& strip, const Cover* covers) {
    Left lefts[kLefts];
    for (int i = 0; i < kLefts; i++) lefts[i] = {strip.source + covers[i].place, strip.apart};
    begin<kLefts, kRights>(strip);
    const uint8_t* panel = strip.panel;
    for (int64_t s = 0; s < strip.count; s++) {
        const Segment& segment = strip.segments[s];
        panel = amx::add_words<kLefts, kRights>(lefts, panel, strip.panel_bytes, segment.offset, segment.steps,
                                                strip.tail);
    }
    end<kLefts, kRights>(strip, covers);
}

// As many of the pixels from p on as lie in one tile; p goes behind them.
Cover cover_some(const Pattern& part, int64_t strip, int64_t end, int64_t& p) {
    Cover found{part.places[p], p - strip, 0};
    if (p + amx::kRows <= end) {  // no gaps, as mostly
        bool dense = true;        // all are looked at: a row's end and an image's may make up for each other
        for (int64_t row = 0; row < amx::kRows; row++) {
            dense &= part.places[p + row] == found.place + row * part.apart;
        }
        if (dense) {
            found.rows = 0xffff;
            p += amx::kRows;
            return found;
        }
    }
    for (int64_t row = 0; row < amx::kRows && p < end; row++) {
        if (part.places[p] != found.place + row * part.apart) continue;
        found.rows |= 1u << row;
        p++;
    }
    return found;
}

// Clocks for some tiles of pixels and so many panels, together: an instruction takes 16 and its result is there
// after 52. Measured: to begin and to end sums takes some 250 more than with VNNI, and to finish them 200.
int64_t clocks_of(int64_t tiles, int64_t panels, int64_t instructions, int64_t sums) {
    return instructions * std::max<int64_t>(52, 16 * tiles * panels) + sums * 250 + 200;
}

// Of all pixels of a part, in strips of so many.
int64_t clocks_of(Pattern part, int64_t strip, int64_t tail) {
    int64_t instructions = 0;
    for (int64_t steps : part.steps) {
        instructions += steps / amx::kWords + (tail ? steps % amx::kWords / tail : 0);
    }
    const int64_t pixels = part.pixels, panels = std::min(part.panels, kMostPanels), most = 4 / panels;
    part.pixels = std::min<int64_t>(pixels, 512);  // which show what rows do
    const Covers covers = cover(part, strip);
    int64_t clocks = 0;
    for (size_t i = 0; i + 1 < covers.strips.size(); i++) {
        const int64_t tiles = covers.strips[i + 1] - covers.strips[i], rest = tiles % most;
        clocks += tiles / most * clocks_of(most, panels, instructions, part.sums);
        if (rest) clocks += clocks_of(rest, panels, instructions, part.sums);
    }
    return clocks * pixels / part.pixels;
}

}  // namespace

Covers cover(const Pattern& part, int64_t strip) {
    Covers covers;
    covers.tiles.reserve(static_cast<size_t>(part.pixels / 8));
    for (int64_t first = 0; first < part.pixels; first += strip) {
        covers.strips.push_back(static_cast<int64_t>(covers.tiles.size()));
        const int64_t end = std::min(first + strip, part.pixels);
        for (int64_t p = first; p < end;) covers.tiles.push_back(cover_some(part, first, end, p));
    }
    covers.strips.push_back(static_cast<int64_t>(covers.tiles.size()));
    return covers;
}

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
        for (const Pattern& part : parts) clocks += clocks_of(part, strip, best.tail);
        if (clocks >= least) continue;
        least = clocks;
        best.pixels = strip;
    }
    return best.pixels ? best : vnni;
}

// As many tiles of pixels together as make four of sums.
LOWBIT_AMX_TARGET void run_bytes_amx(const Strip& strip) {
    int64_t i = 0;
    for (; i + 4 <= strip.tiles; i += 4) sum_up<4, 1>(strip, strip.covers + i);
    if (strip.tiles - i == 3) return sum_up<3, 1>(strip, strip.covers + i);
    if (strip.tiles - i == 2) return sum_up<2, 1>(strip, strip.covers + i);
    if (strip.tiles - i == 1) return sum_up<1, 1>(strip, strip.covers + i);
}

LOWBIT_AMX_TARGET void run_two_panels_amx(const Strip& strip) {
    int64_t i = 0;
    for (; i + 2 <= strip.tiles; i += 2) sum_up<2, 2>(strip, strip.covers + i);
    if (i < strip.tiles) sum_up<1, 2>(strip, strip.covers + i);
}

}  // namespace lowbit::conv
#endif
