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
#include "instruction_set.h"
#include "packing.h"

#include <stdint.h>

namespace lowbit::conv {

constexpr int64_t kStrip = 48;      // pixels of a strip
constexpr int64_t kSlack = 8;       // pixels that may be computed behind the last one
constexpr int64_t kMostPanels = 2;  // computed together

struct Segment {
    int64_t offset;  // bytes, from the place of a pixel
    int64_t steps;
    bool widen;
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
};

constexpr int64_t kPanelOfSums = (kStrip + kSlack) * kPanel;

struct Tiles {
    int64_t panels;                   // how many `run` computes together
    void (*run)(const Strip& strip);
    void (*run_one)(const Strip& strip);  // one panel
    int64_t steps_in_int16;           // after which a segment must widen; 0 where nothing is narrow
};

// How the operands of a product are packed, and the loops for them, `largest` being magnitudes of the bytes.
struct Choice {
    Packed packed;
    Tiles tiles;
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
#endif

}  // namespace lowbit::conv
