// Micro-kernels with AMX, 16 pixels times 16 channels per tile, the configuration of tiles, and the estimate
// of when AMX is faster than VNNI; see amx.h.
#include "gemm/microkernel.h"

#if LOWBIT_AMX
#include <algorithm>
#include <cstring>
#include <numeric>

namespace lowbit::amx {

LOWBIT_TARGET_AMX TileConfig::TileConfig(int64_t rows, int64_t tail) {
    TileConfigData c;
    const auto set = [&c](int tile, int64_t rows_of, int64_t bytes) {
        c.rows[tile] = static_cast<uint8_t>(rows_of);
        c.row_bytes[tile] = static_cast<uint16_t>(bytes);
    };
    for (int sums = 0; sums < 4; sums++) set(sums, rows, kBytes);
    set(4, rows, kBytes);
    set(5, kWords, kBytes);
    if (tail) {
        set(6, rows, 4 * tail);
        set(7, tail, kBytes);
    }
    __asm__ volatile("sttilecfg %0" : "=m"(before_));
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

LOWBIT_TARGET_AMX TileConfig::~TileConfig() {
    if (before_.palette) {
        __asm__ volatile("ldtilecfg %0" : : "m"(before_));
    } else {
        __asm__ volatile("tilerelease");
    }
}

}  // namespace lowbit::amx

namespace lowbit::gemm {
namespace {

using amx::LeftTile;

template <int kLefts, int kRights, int kTile = 0>
LOWBIT_AMX_INLINE void load_initial(const Strip& strip) {
    amx::load<kTile>(strip.initial_sums + kTile % kRights * kPanel,
                     0);  // a stride of 0 copies it to every row
    if constexpr (kTile + 1 < kLefts * kRights) load_initial<kLefts, kRights, kTile + 1>(strip);
}

template <int kLefts, int kRights, int kTile = 0>
LOWBIT_AMX_INLINE void store_sums(const Strip& strip, const TileCover* covers) {
    constexpr int64_t kRow = kPanel * sizeof(int32_t);
    const TileCover& c = covers[kTile / kRights];
    int32_t* to = strip.sums + kTile % kRights * kPanelSums + c.pixel * kPanel;
    if (c.rows & (c.rows + 1)) {  // rows that are no pixels lie between
        alignas(64) int32_t found[amx::kRows * kPanel];
        amx::store<kTile>(found, kRow);
        for (uint32_t rows = c.rows; rows; rows &= rows - 1, to += kPanel) {
            memcpy(to, found + __builtin_ctz(rows) * kPanel, kRow);
        }
    } else {
        amx::store<kTile>(to, kRow);  // rows beyond the pixels are overwritten by the next tile
    }
    if constexpr (kTile + 1 < kLefts * kRights) store_sums<kLefts, kRights, kTile + 1>(strip, covers);
}

template <int kLefts, int kRights>
LOWBIT_AMX_INLINE void accumulate(const Strip& strip, const TileCover* covers) {
    LeftTile lefts[kLefts];
    for (int i = 0; i < kLefts; i++) lefts[i] = {strip.source + covers[i].offset, strip.pixel_stride};
    load_initial<kLefts, kRights>(strip);
    const uint8_t* panel = strip.panel;
    for (int64_t s = 0; s < strip.count; s++) {
        const Segment& segment = strip.segments[s];
        panel = amx::add_words<kLefts, kRights>(lefts, panel, strip.panel_bytes, segment.offset,
                                                segment.steps, strip.tail);
    }
    store_sums<kLefts, kRights>(strip, covers);
}

// Covers as many pixels from p on as fit into one tile, and advances p.
TileCover cover_some(const PhasePattern& phase, int64_t strip, int64_t end, int64_t& p) {
    TileCover found{phase.pixel_offsets[p], p - strip, 0};
    if (p + amx::kRows <= end) {  // usually there are no gaps
        bool dense = true;        // checks every row: the ends of rows and images could compensate each other
        for (int64_t row = 0; row < amx::kRows; row++) {
            dense &= phase.pixel_offsets[p + row] == found.offset + row * phase.pixel_stride;
        }
        if (dense) {
            found.rows = 0xffff;
            p += amx::kRows;
            return found;
        }
    }
    for (int64_t row = 0; row < amx::kRows && p < end; row++) {
        if (phase.pixel_offsets[p] != found.offset + row * phase.pixel_stride) continue;
        found.rows |= 1u << row;
        p++;
    }
    return found;
}

// Estimated cycles for some tiles of pixels and panels together: an instruction starts every 16 cycles and
// has a latency of 52. Measured: starting and storing sums takes some 250 cycles more than with VNNI, and the
// epilogue 200.
int64_t cycles_of(int64_t tiles, int64_t panels, int64_t instructions, int64_t sums) {
    return instructions * std::max<int64_t>(52, 16 * tiles * panels) + sums * 250 + 200;
}

// The same for all pixels of a phase in strips of this size.
int64_t cycles_of(PhasePattern phase, int64_t strip, int64_t tail) {
    int64_t instructions = 0;
    for (int64_t steps : phase.steps) {
        instructions += steps / amx::kWords + (tail ? steps % amx::kWords / tail : 0);
    }
    const int64_t pixels = phase.pixels, panels = std::min(phase.panels, kMaxPanels), together = 4 / panels;
    phase.pixels = std::min<int64_t>(pixels, 512);  // enough to see the pattern of the rows
    const TileCovers covers = cover(phase, strip);
    int64_t cycles = 0;
    for (size_t i = 0; i + 1 < covers.strips.size(); i++) {
        const int64_t tiles = covers.strips[i + 1] - covers.strips[i], rest = tiles % together;
        cycles += tiles / together * cycles_of(together, panels, instructions, phase.sums);
        if (rest) cycles += cycles_of(rest, panels, instructions, phase.sums);
    }
    return cycles * pixels / phase.pixels;
}

}  // namespace

TileCovers cover(const PhasePattern& phase, int64_t strip) {
    TileCovers covers;
    covers.tiles.reserve(static_cast<size_t>(phase.pixels / 8));
    for (int64_t first = 0; first < phase.pixels; first += strip) {
        covers.strips.push_back(static_cast<int64_t>(covers.tiles.size()));
        const int64_t end = std::min(first + strip, phase.pixels);
        for (int64_t p = first; p < end;) covers.tiles.push_back(cover_some(phase, first, end, p));
    }
    covers.strips.push_back(static_cast<int64_t>(covers.tiles.size()));
    return covers;
}

Microkernel choose_amx(const Microkernel& vnni, const std::vector<PhasePattern>& phases) {
    constexpr int64_t kStrips[] = {64, 56, 48};
    Microkernel best{vnni.panels, run_int8_two_panels_amx, run_int8_amx, 0, 0, true, 0};
    for (const PhasePattern& phase : phases) {
        for (int64_t steps : phase.steps) best.tail = std::gcd(best.tail, steps % amx::kWords);
    }
    int64_t least = 0;
    for (const PhasePattern& phase : phases) {
        // VNNI starts two steps of a pixel per cycle.
        const int64_t steps = std::accumulate(phase.steps.begin(), phase.steps.end(), int64_t{0});
        least += phase.pixels * steps * std::min(phase.panels, kMaxPanels) / 2;
    }
    for (int64_t strip : kStrips) {
        int64_t cycles = 0;
        for (const PhasePattern& phase : phases) cycles += cycles_of(phase, strip, best.tail);
        if (cycles >= least) continue;
        least = cycles;
        best.pixels = strip;
    }
    return best.pixels ? best : vnni;
}

// Four tiles of sums at a time.
LOWBIT_TARGET_AMX void run_int8_amx(const Strip& strip) {
    int64_t i = 0;
    for (; i + 4 <= strip.tile_count; i += 4) accumulate<4, 1>(strip, strip.covers + i);
    if (strip.tile_count - i == 3) return accumulate<3, 1>(strip, strip.covers + i);
    if (strip.tile_count - i == 2) return accumulate<2, 1>(strip, strip.covers + i);
    if (strip.tile_count - i == 1) return accumulate<1, 1>(strip, strip.covers + i);
}

LOWBIT_TARGET_AMX void run_int8_two_panels_amx(const Strip& strip) {
    int64_t i = 0;
    for (; i + 2 <= strip.tile_count; i += 2) accumulate<2, 2>(strip, strip.covers + i);
    if (i < strip.tile_count) accumulate<1, 2>(strip, strip.covers + i);
}

}  // namespace lowbit::gemm
#endif
