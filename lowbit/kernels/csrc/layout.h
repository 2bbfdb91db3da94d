// How the operands of a product are packed: sizes that follow from the convolution and the chosen tiles.
#pragma once
#include "convolution.h"
#include "driver.h"
#include "steps.h"

#include <cstdlib>

namespace lowbit::conv {

inline int64_t up_to(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

struct Layout {
    Layout(const Convolution& convolution, const lowbit_operand& source, const lowbit_operand& weight) {
        offset = source.lowest < 0 ? -source.lowest : 0;
        const int64_t largest_source = std::max(source.highest, 0) + offset;
        const int64_t largest_weight = std::max(std::abs(weight.lowest), std::abs(weight.highest));
        const Choice choice = choose_tiles(largest_source, largest_weight, weight.highest < 128);
        tiles = choice.tiles;
        packed = choice.packed;
        if (packed == Packed::words) offset = 0;
        channels = up_to(convolution.source.channels, 4);
        pixel_bytes = channels * size_of(packed);
        row_bytes = convolution.padded_width * pixel_bytes;
        image_bytes = convolution.padded_height * row_bytes;
        panels = up_to(convolution.result.channels, kPanel) / kPanel;
        panel_bytes = convolution.kernel * pixel_bytes * kPanel;
        limits = {tiles.steps_in_int16, steps_in_int32(largest_source, largest_weight, 4 / size_of(packed))};
    }

    // Bytes between neighbouring pixels of a part; what there is one of has none.
    int64_t apart(const Part& part) const {
        if (part.columns > 1) return part.step_w * pixel_bytes;
        return part.rows > 1 ? part.step_h * row_bytes : image_bytes;
    }

    Tiles tiles;
    Packed packed;
    Limits limits;
    int offset;        // added to the source's values
    int64_t channels;  // of the source, with those that fill up the last four
    int64_t pixel_bytes, row_bytes, image_bytes;
    int64_t panels, panel_bytes;
};

}  // namespace lowbit::conv
