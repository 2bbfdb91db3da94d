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

    void pack(int64_t group);

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

// Some images of the source with their padding, and, where taps are summed in fp32, the scales of their
// pixels.
class PackedImages {
  public:
    PackedImages(const Convolution& convolution, const PackedLayout& layout, const Product& product);

    // How many are packed at a time.
    int64_t max_images() const { return max_images_; }

    void pack(int64_t group, int64_t first, int64_t count);

    const uint8_t* bytes() const { return bytes_; }

    // The index of a source pixel among those of a padded image, and their number.
    int64_t pixel_index(int64_t row, int64_t column) const {
        return (row + convolution_.pad_top) * convolution_.padded_width + column + convolution_.pad_left;
    }
    int64_t padded_pixels() const { return convolution_.padded_height * convolution_.padded_width; }

    // By pixel index, 0 in the padding.
    const float* scales() const { return scales_; }

  private:
    void pack_image(int64_t group, int64_t n, int64_t slot);
    void expand_scales(int64_t n, int64_t slot);

    const Convolution& convolution_;
    const PackedLayout& layout_;
    const Product& product_;
    int64_t max_images_;
    uint8_t* bytes_;
    int64_t* pixels_;  // where the elements of a pixel begin
    float* scales_ = nullptr;
};

}  // namespace lowbit::gemm
