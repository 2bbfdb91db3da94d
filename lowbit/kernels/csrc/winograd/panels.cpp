// Loads the pixels of a panel of sixteen channels: bytes in NCHW to int16 with channels innermost.
#include "common/scratch.h"
#include "gemm/packing.h"
#include "winograd/transforms.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace lowbit::winograd {
namespace {

// Where the pixels of rows of `width` go in rows of `columns`, in elements; `rows` of them at least.
const int64_t* pixel_offsets(int64_t width, int64_t columns, int64_t rows) {
    thread_local std::vector<int64_t> offsets;
    thread_local int64_t of_width = 0, of_columns = 0;
    if (width != of_width || columns != of_columns || rows * width > int64_t(offsets.size())) {
        offsets.resize(static_cast<size_t>(rows * width));
        of_width = width, of_columns = columns;
        for (int64_t p = 0; p < rows * width; p++) {
            offsets[static_cast<size_t>(p)] = (p / width * columns + p % width) * kPanel;
        }
    }
    return offsets.data();
}

}  // namespace

PanelPixels load_panel(const Bytes& of, const Tiling& tiling, int64_t image, int64_t panel, int64_t first,
                       int64_t rows) {
    thread_local Scratch scratch;
    const int64_t more = of.reach - kTile, height = kTile * rows + more;
    const int64_t columns = kTile * tiling.columns + more, row = columns * kPanel;
    int16_t* pixels = scratch.get<int16_t>(height * row);
    const int64_t c = panel * kPanel, channels = std::min(kPanel, of.channels - c);
    // The rows [top, bottom) and columns [left, right) are inside the image.
    const int64_t above = kTile * first - of.pad_top, left = of.pad_left;
    const int64_t top = std::clamp<int64_t>(-above, 0, height);
    const int64_t bottom = std::clamp(of.height - above, top, height);
    const int64_t right = std::min(columns, left + of.width);
    const auto clear = [](int16_t* from, int16_t* to) {
        memset(from, 0, static_cast<size_t>(to - from) * sizeof(int16_t));
    };
    if (channels < kPanel) clear(pixels, pixels + height * row);
    clear(pixels, pixels + top * row);
    clear(pixels + bottom * row, pixels + height * row);
    for (int64_t i = top; i < bottom; i++) {
        clear(pixels + i * row, pixels + i * row + left * kPanel);
        clear(pixels + i * row + right * kPanel, pixels + (i + 1) * row);
    }
    const int64_t plane = of.height * of.width;
    const uint8_t* end = of.first + of.images * of.channels * plane;
    const uint8_t* from = of.first + (image * of.channels + c) * plane + (above + top) * of.width;
    int16_t* to = pixels + top * row + left * kPanel;
    const int64_t* offsets = pixel_offsets(of.width, columns, bottom - top);
    const auto pack = [&](int64_t i, int64_t count) {
        gemm::pack_planes({from + i * of.width, end, of.is_signed}, channels, plane, count, offsets, 0,
                          gemm::ElementType::int16, to + i * row);
    };
    if (right - left == of.width) {
        pack(0, (bottom - top) * of.width);
    } else {
        for (int64_t i = 0; i < bottom - top; i++) pack(i, right - left);
    }
    return {pixels, columns, rows, tiling.columns};
}

}  // namespace lowbit::winograd
