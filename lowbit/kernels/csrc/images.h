// Some images of the source, packed with their padding, and the scales of their pixels laid out alike.
#pragma once
#include "layout.h"
#include "room.h"

namespace lowbit::conv {

class Images {
  public:
    Images(const Convolution& convolution, const Layout& layout, const Product& product);

    // How many are packed at a time.
    int64_t most() const { return most_; }

    void pack(int64_t group, int64_t first, int64_t count);

    const uint8_t* bytes() const { return bytes_; }

    // The number of a source pixel among those of a padded image, and of these.
    int64_t spot(int64_t row, int64_t column) const {
        return (row + convolution_.above) * convolution_.padded_width + column + convolution_.before;
    }
    int64_t spots() const { return convolution_.padded_height * convolution_.padded_width; }

    // Of every spot, 0 in the padding; only where taps are added up in fp32.
    const float* scales() const { return scales_; }

  private:
    void pack_image(int64_t group, int64_t n, int64_t place);
    void spread_scales(int64_t n, int64_t place);

    const Convolution& convolution_;
    const Layout& layout_;
    const Product& product_;
    int64_t most_;
    uint8_t* bytes_;
    int64_t* pixels_;  // where a pixel is packed
    float* scales_ = nullptr;
};

}  // namespace lowbit::conv
