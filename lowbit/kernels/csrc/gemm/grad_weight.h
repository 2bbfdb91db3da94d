// grad_weight: what is summed in which order, and how both operands are packed for it.
//
// dw[o, c, tap] is a sum over images and pixels: channel o of dy times what the tap sees of channel c of x.
// Both operands are packed into words of 4 bytes along the pixels, so that one instruction multiplies a word
// of one channel of x with the words of 8 or 16 channels of dy and adds up inside the words. A word is 4
// bytes, or 2 int16 where products of bytes could overflow what vpmaddubsw of AVX2 can hold. Its lanes are
//   the same pixel of 4 (2) images,
//   or the same pixel of the 4 (2) horizontal strips that one image is divided into,
//   or 4 (2) adjacent pixels,
// whichever pads least. A tap shifts x by whole words in the first two cases and by one pixel's bytes in the
// last, so that packing once serves all taps.
//
//   x   [channel][set of images][row][column modulo the stride][column / stride]
//   dy  [panel of 16 outputs of a group][set of images][row][word of a row][16 outputs]
//
// Columns of x are separated by stride so that what a tap sees of a row is contiguous. Pixels outside the
// image are packed as a zero of x. What fills up a word, a set or a panel is a zero of dy, whatever x is
// there.
//
// Files: grad_weight.cpp makes the plan and runs the loops, grad_weight_packing.cpp packs the operands and
// scales the sums, grad_weight_kernel.cpp has the micro-kernels.
#pragma once
#include "common/cpu.h"
#include "gemm/gemm.h"

#include <vector>

namespace lowbit::wgrad {

constexpr int64_t kPanel = 16;        // outputs of a panel
constexpr int64_t kMaxPanels = 4;     // that are computed together
constexpr int64_t kWord = 4;          // bytes
constexpr int64_t kChunk = 64;        // bytes that packing writes at a time
constexpr int64_t kBlockWords = 128;  // per reduction block: 8 KB of dy, which stay in the L1 cache

// How words are multiplied.
enum class Method {
    int16,       // int16 products in int32: exact for every operand
    int8_acc16,  // bytes, accumulated in int16 for as long as they fit, then in int32
    int8_acc32,  // bytes, every word widened to int32
    vnni,        // bytes into int32 by one instruction
    amx,         // the same for tiles
};

// What the integers of a word are.
enum class Lanes { images, strips, pixels };

// Arguments of a micro-kernel: a few channels of x times the outputs of one or two panels, for one tap, over
// some rows.
struct KernelArgs {
    const uint8_t* x;
    int64_t x_channel, x_row;  // bytes
    const uint8_t* dy;
    int64_t dy_panel;  // bytes
    int64_t rows, words;
    int64_t budget;
    int32_t* sums;  // the outputs of one channel are contiguous
    int64_t sums_channel;
};

using KernelFunction = void (*)(const KernelArgs&);

// The columns of x with one remainder modulo the stride: [first, last) lie in the image; `used`: by any tap.
struct ColumnSpan {
    int64_t first, last;
    bool used;
};

struct Plan;

// The reduction as runs of words: dy's are contiguous, x's are row after row.
struct ReductionLoops {
    int64_t sets, rows, words;
    int64_t x_set, x_row;  // bytes

    explicit ReductionLoops(const Plan& plan);
};

struct Plan {
    lowbit_geometry g;  // of a plain 1x1 kernel: with all pixels in one row
    int64_t out_h, out_w;
    int64_t group_channels, group_outputs, taps;
    bool x_signed, dy_signed;
    bool by_sample;  // scales by sample: each sample has sums of its own

    InstructionSet isa;
    Method method;
    int64_t budget;  // words until an int16 sum could overflow
    int64_t limit;   // words until an int32 sum could overflow
    int32_t zero;    // how a zero of x is packed: not as 0 where x has an offset that makes it unsigned
    int64_t lanes;   // integers in a word
    Lanes lanes_are;
    int64_t sets;      // of `lanes` images, or of one image
    int64_t set_rows;  // rows of dy in a set: an image's, or a strip's

    int64_t pixel;        // bytes from one pixel of x to the next
    int64_t phase_bytes;  // the columns of one remainder
    int64_t row_bytes, set_bytes, channel_bytes;
    int64_t rows;                        // of x in a set, with padding
    int64_t words;                       // of a row of dy
    int64_t panels, panel_bytes;         // of dy, in one group
    int64_t tile_channels, tile_panels;  // the largest register tile
    int64_t tail;                        // for AMX: words of a run modulo 16

    std::vector<ColumnSpan> spans;  // of x, by remainder
    std::vector<char> used_rows;    // of x: whether a tap sees them
    std::vector<uint8_t> zeros;     // a row of the image and a chunk

    Plan(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& x);

    int64_t tap_offset(int64_t tap) const;  // bytes, within a set of x
    int64_t columns() const { return phase_bytes / pixel; }
    // AMX reads whole tiles of channels: those beyond the last are read too, and their sums are ignored.
    int64_t channel_multiple() const { return method == Method::amx ? tile_channels : 1; }
    int64_t x_bytes() const { return (g.channels + channel_multiple() - 1) * channel_bytes; }
    int64_t dy_bytes() const { return g.groups * panels * panel_bytes; }
};

// Computes dw, or only the exact sums when not null. Throws std::bad_alloc.
void run(const Plan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw, int64_t* sums);

// The micro-kernel that adds to the sums of `channels` channels of x and `panels` panels of dy.
KernelFunction kernel_function(Method method, InstructionSet isa, int64_t channels, int64_t panels);

// The most channels for which there is one.
int64_t max_kernel_channels(Method method, InstructionSet isa);

#if LOWBIT_AMX
// The same with AMX for `count` tiles, each with as many channels as tiles have rows; count * panels is at
// most 4. `x` and `sums` have an entry per tile.
void accumulate_amx(const KernelArgs& args, const uint8_t* const* x, int32_t* const* sums, int64_t count,
                    int64_t panels, int64_t tail);
#endif

// Everything before and after the micro-kernels, compiled for one instruction set; see
// grad_weight_packing.cpp.
struct Passes {
    void (*pack_x)(const Plan& plan, const uint8_t* x, int64_t channel, uint8_t* out);
    void (*pack_dy)(const Plan& plan, const uint8_t* dy, int64_t panel, uint8_t* out);
    void (*sum_dy)(const Plan& plan, const uint8_t* dy, int64_t* sums);
    void (*flush)(int32_t* narrow, int64_t* wide, const int64_t* shift, int64_t rows, int64_t width);
    void (*scale_narrow)(int32_t* sums, const int64_t* shift, const float* scale_dy, const float* scale_x,
                         float* values, bool add, int64_t channels, int64_t taps, int64_t width);
    void (*scale_wide)(int64_t* sums, const int64_t* shift, const float* scale_dy, const float* scale_x,
                       float* values, bool add, int64_t channels, int64_t taps, int64_t width);
    void (*store_values)(const float* from, int64_t rows, int64_t width, float* to, int64_t to_output,
                         int64_t outputs);
    void (*store_sums)(const int64_t* from, int64_t rows, int64_t width, int64_t* to, int64_t to_output,
                       int64_t outputs);
};

const Passes& passes_for(InstructionSet isa);

}  // namespace lowbit::wgrad
