// How the weight's gradient is worked out: what is summed in which order, and how both operands lie for it.
//
// dw[o, c, tap] is a sum over images and pixels: dy's channel o times what the tap sees of x's channel c. Both
// operands are packed into words of 4 bytes, so that one instruction multiplies a word of one channel of x with
// the words of 8 or 16 channels of dy and adds up inside the word. A word is 4 integers of 8 bits, or 2 of 16
// where products of bytes could leave what AVX2's vpmaddubsw can hold. They are the same pixel of 4 (2) images;
// or the same pixel of the 4 (2) strips of rows that one image is cut into; or 4 (2) neighbouring pixels. A tap
// shifts x by whole words in the first two cases and by the bytes of one pixel in the last, so it never breaks one.
//
//   x   [channels][sets of images][rows][columns' rests modulo the stride][columns of that rest]
//   dy  [16 outputs of a group][sets of images][rows][words of a row][16]
//
// The columns of x are parted by stride so that what a tap sees of a row lies together. What lies outside of the
// image is packed as a zero of x. What fills up a word, a set or a panel is a zero of dy, whatever x is there.
#pragma once
#include "instruction_set.h"
#include "products.h"

#include <vector>

namespace lowbit::weight {

constexpr int64_t kPanel = 16;        // outputs side by side
constexpr int64_t kMostPanels = 4;    // worked out together
constexpr int64_t kWord = 4;          // bytes
constexpr int64_t kChunk = 32;        // bytes that packing writes in one go
constexpr int64_t kBlockWords = 128;  // summed in one go: 8 KB of dy, which stay in the first cache

// How words are multiplied.
enum class Route {
    pairs,   // integers of 16 bits, sums of 32: exact for every operand
    narrow,  // bytes, sums of 16 bits for as long as they hold, then of 32
    bytes,   // bytes, the sums of a word to 32 bits at once
    vnni,    // bytes, sums of 32 bits by one instruction
    amx,     // the same, for tiles of them
};

// What the integers of a word are.
enum class Lanes { images, strips, pixels };

// One rectangle of sums: a few channels of x by the outputs of one panel or two, for one tap, over some rows.
struct WeightTile {
    const uint8_t* x;
    int64_t x_channel, x_row;  // bytes
    const uint8_t* dy;
    int64_t dy_panel;  // bytes
    int64_t rows, words;
    int64_t budget;
    int32_t* sums;  // the outputs of one channel lie together
    int64_t sums_channel;
};

using TileFunction = void (*)(const WeightTile&);

// The columns of one rest: whether a tap sees them, and [first, last) that lie in the image.
struct Span {
    int64_t first, last;
    bool used;
};

struct WeightPlan;

// What is summed over, as runs of words: dy's lie one after the other, x's row after row.
struct Walk {
    int64_t sets, rows, words;
    int64_t x_set, x_row;  // bytes

    explicit Walk(const WeightPlan& plan);
};

struct WeightPlan {
    lowbit_geometry g;  // a 1x1 kernel that sees every pixel as it is: with all pixels in one row
    int64_t out_h, out_w;
    int64_t group_channels, group_outputs, taps;
    bool x_signed, dy_signed;
    bool by_sample;  // scales by sample: each has sums of its own

    InstructionSet set;
    Route route;
    int64_t budget;  // words until a sum of 16 bits could overflow
    int64_t limit;   // words until a sum of 32 bits could overflow
    int32_t zero;    // how a zero of x is packed: not as 0 where x was shifted to be unsigned
    int64_t lanes;   // integers in a word
    Lanes lanes_are;
    int64_t sets;      // of that many images, or of one image
    int64_t set_rows;  // rows of dy in a set: an image's, or a strip's

    int64_t pixel;        // bytes from one pixel of x to the next
    int64_t phase_bytes;  // the columns of one rest
    int64_t row_bytes, set_bytes, channel_bytes;
    int64_t rows;                        // of x in a set, with what lies outside of the image
    int64_t words;                       // of a row of dy
    int64_t panels, panel_bytes;         // of dy; a group's
    int64_t tile_channels, tile_panels;  // the largest tile that there is
    int64_t tail;                        // of AMX: words of a run, modulo 16

    std::vector<Span> spans;      // of x
    std::vector<char> used_rows;  // of x: whether a tap sees them
    std::vector<uint8_t> zeros;   // a row of the image, and a chunk

    WeightPlan(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& x);

    int64_t tap_offset(int64_t tap) const;  // bytes, into a set of x
    int64_t columns() const { return phase_bytes / pixel; }
    // AMX has tiles of so many channels only: those behind the last are read, and their sums left alone.
    int64_t whole_channels() const { return route == Route::amx ? tile_channels : 1; }
    int64_t x_bytes() const { return (g.channels + whole_channels() - 1) * channel_bytes; }
    int64_t dy_bytes() const { return g.groups * panels * panel_bytes; }
};

}  // namespace lowbit::weight
