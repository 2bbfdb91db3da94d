// The inner loops: exact sums for a strip of pixels times sixteen channels, for each instruction set.
//
// A step multiplies the four bytes of a pixel (four unsigned bytes, or two int16) with the four of each of
// sixteen channels (signed bytes, or int16) and adds them up. Steps lie behind each other in a panel of
// weights; in the packed image they lie in segments.
//
// Sums are int32; the driver gives no more steps than they hold (`steps_in_int32`). With AVX2 alone, products of
// bytes are added up in int16 first, two to a step: with a and b the largest magnitudes, T steps are exact
// when T * 2 * a * b <= 32767, and at the latest then a segment must end with `widen`.
#pragma once
#include "amx.h"
#include "packing.h"

#include <stdint.h>

#include <optional>
#include <vector>

namespace lowbit::conv {

constexpr int64_t kStrip = 64;      // most pixels of a strip
constexpr int64_t kSlack = 16;      // pixels that may be computed behind the last one
constexpr int64_t kMostPanels = 2;  // computed together

struct Segment {
    int64_t offset;  // bytes, from the place of a pixel
    int64_t steps;
    bool widen;
};

// Some pixels of a strip in one tile of AMX, whose rows are equally far from each other in memory: pixels along a
// row of an image are, but not from its last to the next row's first. What lies between is computed with them and
// left out; with padding of one pixel that are two of sixteen.
struct Cover {
    int64_t place;   // of the first
    int64_t pixel;   // the same, counted in the strip
    uint32_t rows;   // a bit for each that is a pixel; they are in order
};

struct Strip {
    const uint8_t* source;
    const int64_t* places;  // of the pixels, in bytes; kSlack more can be read
    int64_t pixels;
    const Segment* segments;
    int64_t count;
    const uint8_t* panel;
    int64_t panel_bytes;   // to the next panel
    const int32_t* start;  // what the sums begin with, 16 of each panel
    int32_t* sums;         // [panels][kStrip + kSlack][16]
    // For AMX alone:
    const Cover* covers = nullptr;  // of all pixels
    int64_t tiles = 0;
    int64_t apart = 0;  // bytes between the rows of a tile
    int64_t tail = 0;   // steps; what segments leave over sixteens is a multiple
};

constexpr int64_t kPanelOfSums = (kStrip + kSlack) * kPanel;

struct Tiles {
    int64_t panels;                   // how many `run` computes together
    void (*run)(const Strip& strip);
    void (*run_one)(const Strip& strip);  // one panel
    int64_t steps_in_int16;           // after which a segment must widen; 0 where nothing is narrow
    int64_t pixels = 48;              // of a strip
    bool amx = false;
    int64_t tail = 0;                 // of AMX: steps, see Strip
};

// What is known of a part of a product before it is computed.
struct Pattern {
    const int64_t* places;
    int64_t pixels, apart, panels;
    std::vector<int64_t> steps;  // of the segments
};

// The tiles of AMX for some strips, and where those of each strip begin, and the last's end.
struct Covers {
    std::vector<Cover> tiles;
    std::vector<int64_t> strips;
};

// How the operands of a product are packed, and the loops for them, `largest` being magnitudes of the bytes.
struct Choice {
    Packed packed;
    Tiles tiles;
};

// A thread is ready for `run` while this lives.
class Ready {
  public:
    explicit Ready(const Tiles& tiles) {
#if LOWBIT_AMX
        if (tiles.amx) shapes_.emplace(amx::kRows, tiles.tail);
#endif
        (void)tiles;
    }

  private:
#if LOWBIT_AMX
    std::optional<amx::Shapes> shapes_;
#endif
};

Choice choose_tiles(int64_t largest_source, int64_t largest_weight, bool weight_fits_int8);

// The loops for int16, whatever the magnitudes.
Tiles words_tiles();

void run_bytes_baseline(const Strip& strip);
void run_words_baseline(const Strip& strip);
#if LOWBIT_X86
void run_narrow_avx2(const Strip& strip);  // bytes, in int16 until a segment widens
void run_pairs_avx2(const Strip& strip);   // bytes, two steps in int16, then int32
void run_single_avx2(const Strip& strip);  // bytes, every step widened
void run_words_avx2(const Strip& strip);
void run_bytes_avxvnni(const Strip& strip);
void run_bytes_avx512vnni(const Strip& strip);
void run_two_panels_avx512vnni(const Strip& strip);
#if LOWBIT_AMX
// AMX instead of VNNI where it is faster: few steps do not fill its tiles, nor do short rows.
Tiles choose_amx(const Tiles& vnni, const std::vector<Pattern>& parts);
Covers cover(const Pattern& part, int64_t strip);
void run_bytes_amx(const Strip& strip);
void run_two_panels_amx(const Strip& strip);
#endif
#endif

}  // namespace lowbit::conv
