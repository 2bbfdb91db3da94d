// Packing of forward's and grad_input's operands into the layouts of the micro-kernels, channels innermost.
//
//   images   [image][padded row][padded column][channels]: int16, or bytes that an offset makes unsigned
//   weights  [panel][tap][word of channels][16 output channels][4 bytes]: a step reads 64 consecutive bytes
#pragma once
#include "common/scratch.h"
#include "gemm/conv_gemm.h"

namespace lowbit::gemm {

// Unpacked integers: int8 or uint8.
struct Integers {
    const uint8_t* first;
    const uint8_t* end;  // of the whole operand: reads must stay before it
    bool is_signed;
};

// target[target_offsets[p] + c] = integers.first[c * plane_stride + p] + offset, for p < pixels and c <
// channels, and `offset` for further channels up to a multiple of 4. Offsets count elements.
void pack_planes(Integers integers, int64_t channels, int64_t plane_stride, int64_t pixels,
                 const int64_t* target_offsets, int offset, ElementType packed, void* target);

// Transposes sixteen rows of `count` words to `count` groups of sixteen words.
void interleave_rows(const uint32_t* rows, int64_t count, uint32_t* target);

// The weights of one group.
class PackedWeights {
  public:
    PackedWeights(const Convolution& convolution, const PackedLayout& layout, const lowbit_operand& weight,
                  bool transposed);

    void pack(int64_t group, bool in_parallel);

    const uint8_t* panel(int64_t number) const { return panels_ + number * layout_.panel_bytes; }

    // -offset * the sum of a tap's weights, for the channels of all panels: what sums start with.
    const int64_t* corrections(int64_t tap) const { return corrections_ + tap * layout_.panels * kPanel; }

  private:
    void pack_panel(const uint8_t* first, const uint8_t* end, int64_t panel);

    const Convolution& convolution_;
    const PackedLayout& layout_;
    const lowbit_operand& weight_;
    bool transposed_;
    uint8_t* panels_;
    int64_t* corrections_;
    std::vector<int64_t> target_offsets_;  // of the taps of sixteen rows
};

// How the images of a convolution are divided.
struct ImageSplit {
    ImageSplit(const Convolution& convolution, const PackedLayout& layout);

    bool in_parallel;  // whether more than one thread is worth it
    bool by_images;    // whether every thread has images of its own
    int64_t images;    // packed at a time
};

// Some images of the source with their padding, and, where taps are summed in fp32, the scales of their
// pixels: by pixel index, 0 in the padding.
struct PackedBatch {
    uint8_t* bytes;
    float* scales;
};

// How images are packed, a few at a time.
class PackedImages {
  public:
    // At most `max_images` at a time.
    PackedImages(const Convolution& convolution, const PackedLayout& layout, const Product& product,
                 int64_t max_images);

    int64_t max_images() const { return max_images_; }

    // Memory of the calling thread, until it asks again.
    PackedBatch room() const;

    // Packs image n as number `slot`; on any thread.
    void pack(const PackedBatch& batch, int64_t group, int64_t n, int64_t slot) const;

    // The index of a source pixel among those of a padded image, and their number.
    int64_t pixel_index(int64_t row, int64_t column) const {
        return (row + convolution_.pad_top) * convolution_.padded_width + column + convolution_.pad_left;
    }
    int64_t padded_pixels() const { return convolution_.padded_height * convolution_.padded_width; }

  private:
    void pad(uint8_t* image) const;
    void expand_scales(int64_t n, float* scales) const;

    const Convolution& convolution_;
    const PackedLayout& layout_;
    const Product& product_;
    int64_t max_images_;
    int64_t* pixels_;  // where the elements of a pixel begin
};

}  // namespace lowbit::gemm
