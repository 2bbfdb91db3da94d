// Packing weights: the taps of sixteen channels as rows, then the rows together; see weights.h.
#include "weights.h"

#include "threads.h"

#include <cstring>

namespace lowbit::conv {

Weights::Weights(const Convolution& convolution, const Layout& layout, const lowbit_operand& weight, bool transposed)
    : convolution_(convolution), layout_(layout), weight_(weight), transposed_(transposed) {
    thread_local Room panels, corrections;
    const int64_t taps = convolution.kernel;
    panels_ = panels.of<uint8_t>(layout.panels * layout.panel_bytes);
    corrections_ = corrections.of<int64_t>(taps * layout.panels * kPanel);
    places_.resize(static_cast<size_t>(kPanel * taps));
    int64_t place = 0;
    for (const Part& part : convolution.parts) {
        for (const Tap& tap : part.taps) {
            for (int64_t row = 0; row < kPanel; row++) {
                places_[row * taps + tap.kernel] = (row * taps + place) * layout.channels;
            }
            place++;
        }
    }
}

void Weights::pack(int64_t group) {
    const int64_t size = convolution_.source.channels * convolution_.result.channels * convolution_.kernel;
    const uint8_t* first = static_cast<const uint8_t*>(weight_.integers) + group * size;
    const uint8_t* end = first + (convolution_.groups - group) * size;
    parallel_for(layout_.panels, [&](int64_t panel) { pack_panel(first, end, panel); });
}

void Weights::pack_panel(const uint8_t* first, const uint8_t* end, int64_t panel) {
    thread_local Room room;
    const int64_t taps = convolution_.kernel, size = size_of(layout_.packed), row = taps * layout_.channels * size;
    const int64_t in = convolution_.source.channels, out = convolution_.result.channels;
    const int64_t c = panel * kPanel, count = std::min(kPanel, out - c);
    const bool is_signed = weight_.lowest < 0;
    uint8_t* rows = room.of<uint8_t>(kPanel * row);
    memset(rows + count * row, 0, static_cast<size_t>((kPanel - count) * row));
    if (transposed_) {
        pack_planes({first + c * taps, end, is_signed}, in, out * taps, count * taps, places_.data(), 0,
                    layout_.packed, rows);
    } else {
        for (int64_t i = 0; i < count; i++) {
            pack_planes({first + (c + i) * in * taps, end, is_signed}, in, taps, taps, places_.data(), 0,
                        layout_.packed, rows + i * row);
        }
    }
    interleave_rows(reinterpret_cast<const uint32_t*>(rows), row / 4,
                    reinterpret_cast<uint32_t*>(panels_ + panel * layout_.panel_bytes));
    for (int64_t i = 0; i < kPanel * taps; i++) {
        // Without an offset, which words never have, there is nothing to take back.
        const int64_t sum = layout_.offset ? sum_of_bytes(rows + i * layout_.channels, layout_.channels) : 0;
        corrections_[(i % taps * layout_.panels + panel) * kPanel + i / taps] = -layout_.offset * sum;
    }
}

}  // namespace lowbit::conv
