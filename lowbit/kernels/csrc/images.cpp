// Packing images; see images.h.
#include "images.h"

#include "threads.h"

#include <cstring>

namespace lowbit::conv {

constexpr int64_t kBytesAtATime = 256 * 1024;  // for each thread: so that they are still in the cache when used

Images::Images(const Convolution& convolution, const Layout& layout, const Product& product)
    : convolution_(convolution), layout_(layout), product_(product) {
    thread_local Room bytes, pixels, scales;
    const int64_t fit = std::max<int64_t>(1, lowbit_threads() * kBytesAtATime / layout.image_bytes);
    const int64_t rounds = up_to(convolution.batch, fit) / fit;
    most_ = up_to(convolution.batch, rounds) / rounds;
    // A tile that begins with the last pixel reads on.
    int64_t behind = 0;
    for (const Part& part : convolution.parts) behind = std::max(behind, kSlack * layout.apart(part));
    bytes_ = bytes.of<uint8_t>(most_ * layout.image_bytes + behind);
    // The padding, once for all: packing writes only between it.
    memset(bytes_, layout.offset, static_cast<size_t>(most_ * layout.image_bytes));
    if (product.by_tap) {
        scales_ = scales.of<float>(most_ * spots());
        memset(scales_, 0, static_cast<size_t>(most_ * spots()) * sizeof(float));
    }
    const Image& source = convolution.source;
    pixels_ = pixels.of<int64_t>(source.height * source.width);
    for (int64_t row = 0; row < source.height; row++) {
        for (int64_t column = 0; column < source.width; column++) {
            pixels_[row * source.width + column] = spot(row, column) * layout.channels;
        }
    }
}

void Images::pack(int64_t group, int64_t first, int64_t count) {
    parallel_for(count, [&](int64_t place) {
        pack_image(group, first + place, place);
        if (product_.by_tap) spread_scales(first + place, place);
    });
}

void Images::pack_image(int64_t group, int64_t n, int64_t place) {
    const Image& source = convolution_.source;
    const int64_t plane = source.height * source.width, image = source.channels * plane;
    const uint8_t* all = static_cast<const uint8_t*>(product_.source->integers);
    const uint8_t* end = all + convolution_.batch * convolution_.groups * image;
    const Integers integers{all + (n * convolution_.groups + group) * image, end, product_.source->lowest < 0};
    pack_planes(integers, source.channels, plane, plane, pixels_, layout_.offset, layout_.packed,
                bytes_ + place * layout_.image_bytes);
}

void Images::spread_scales(int64_t n, int64_t place) {
    const Image& source = convolution_.source;
    const lowbit_operand& from = *product_.source;
    for (int64_t row = 0; row < source.height; row++) {
        for (int64_t column = 0; column < source.width; column++) {
            scales_[place * spots() + spot(row, column)] =
                from.scale[n * from.of_n + (row * source.width + column) * from.of_pixel];
        }
    }
}

}  // namespace lowbit::conv
