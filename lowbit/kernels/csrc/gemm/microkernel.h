// Micro-kernels of forward and grad_input: exact sums for a strip of pixels times a panel of 16 output
// channels.
//
// One step multiplies a word of a pixel (four unsigned bytes, or two int16, of consecutive channels) with the
// words of 16 output channels (signed bytes, or int16) and adds up inside the words. Steps are consecutive in
// a panel of weights; in the packed image they lie in segments, since a tap is an offset.
//
// Unsigned times signed bytes is what the instructions want: vpdpbusd, tdpbusd, and vpmaddubsw of AVX2. A
// signed source is made unsigned by an offset, and sums start from -offset * (sum of the weights).
//
// Accumulators are int32, and the caller passes no more steps than they hold. With AVX2 alone, vpmaddubsw
// adds two byte products into int16: with a and b the largest magnitudes, T steps in int16 are exact when T *
// 2 * a * b <= 32767, and by then a segment must end with `widen`. For 4 bits, T is 136 or more, so that
// widening costs almost nothing.
#pragma once
#include "gemm/amx.h"

#include <optional>
#include <vector>

namespace lowbit::gemm {

constexpr int64_t kPanel = 16;     // output channels of a panel
constexpr int64_t kStrip = 64;     // most pixels of a strip
constexpr int64_t kSlack = 16;     // pixels that a kernel may compute beyond the last one
constexpr int64_t kMaxPanels = 2;  // that are computed together
constexpr int64_t kPanelSums = (kStrip + kSlack) * kPanel;

// The elements of packed operands: a word of 4 bytes is four channels of bytes, or two of int16.
enum class ElementType { int8, int16 };

inline int64_t element_size(ElementType type) { return type == ElementType::int8 ? 1 : 2; }

// Steps that are contiguous in the packed image.
struct Segment {
    int64_t offset;  // bytes from a pixel
    int64_t steps;
    bool widen;  // add int16 accumulators to int32 ones after it
};

// Some pixels of a strip as the rows of one AMX tile, which must be equally spaced in memory. Pixels of one
// image row are; between the end of a row and the start of the next lies padding. It is computed as well and
// dropped.
struct TileCover {
    int64_t offset;  // bytes, of the first pixel
    int64_t pixel;   // the first pixel's number in the strip
    uint32_t rows;   // a bit for each tile row that is a pixel, in order
};

// Arguments of a micro-kernel.
struct Strip {
    const uint8_t* source;
    const int64_t* pixel_offsets;  // bytes; kSlack more than `pixels` can be read
    int64_t pixels;
    const Segment* segments;
    int64_t count;  // segments
    const uint8_t* panel;
    int64_t panel_bytes;          // to the next panel
    const int32_t* initial_sums;  // 16 of each panel
    int32_t* sums;                // [panels][kStrip + kSlack][16]
    // For AMX only:
    const TileCover* covers = nullptr;  // of all pixels
    int64_t tile_count = 0;
    int64_t pixel_stride = 0;  // bytes between the rows of a tile
    int64_t tail = 0;          // steps; the remainders of segments modulo 16 are multiples of it
};

struct Microkernel {
    int64_t panels;  // that `run` computes together
    void (*run)(const Strip& strip);
    void (*run_one)(const Strip& strip);  // one panel
    int64_t steps_in_int16;               // until a segment must widen; 0 where nothing accumulates in int16
    int64_t pixels = 48;                  // of a strip
    bool amx = false;
    int64_t tail = 0;  // for AMX, see Strip
};

struct MicrokernelChoice {
    ElementType packed;
    Microkernel microkernel;
};

// The fastest exact way for operands of these magnitudes, the source's after its offset was added.
MicrokernelChoice choose_microkernel(int64_t largest_source, int64_t largest_weight, bool weight_fits_int8);

// Configures the calling thread for a micro-kernel during its lifetime: AMX tiles need shapes.
class ThreadSetup {
  public:
    explicit ThreadSetup(const Microkernel& microkernel) {
#if LOWBIT_AMX
        if (microkernel.amx) config_.emplace(amx::kRows, microkernel.tail);
#endif
        (void)microkernel;
    }

  private:
#if LOWBIT_AMX
    std::optional<amx::TileConfig> config_;
#endif
};

// What is known of a phase before it is computed.
struct PhasePattern {
    const int64_t* pixel_offsets;
    int64_t pixels, pixel_stride, panels;
    int64_t sums;                // that are started and stored, per pixel and channel
    std::vector<int64_t> steps;  // of the segments
};

// The AMX tiles of all strips, and the first tile of each strip, with one more entry for the end.
struct TileCovers {
    std::vector<TileCover> tiles;
    std::vector<int64_t> strips;
};

void run_int8_baseline(const Strip& strip);
void run_int16_baseline(const Strip& strip);
#if LOWBIT_X86
void run_int8_acc16_avx2(const Strip& strip);   // accumulates in int16 until a segment widens
void run_int8_paired_avx2(const Strip& strip);  // adds two steps in int16, then widens
void run_int8_acc32_avx2(const Strip& strip);   // widens every step
void run_int16_avx2(const Strip& strip);
void run_int8_avxvnni(const Strip& strip);
void run_int8_avx512vnni(const Strip& strip);
void run_int8_two_panels_avx512vnni(const Strip& strip);
#if LOWBIT_AMX
// AMX where it is faster than VNNI: few steps, or short rows of pixels, leave its tiles partly empty.
Microkernel choose_amx(const Microkernel& vnni, const std::vector<PhasePattern>& phases);
TileCovers cover(const PhasePattern& phase, int64_t strip);
void run_int8_amx(const Strip& strip);
void run_int8_two_panels_amx(const Strip& strip);
#endif
#endif

}  // namespace lowbit::gemm
