// The weights of a group in panels of sixteen channels of the result, and what they add when the source has an
// offset.
#pragma once
#include "layout.h"
#include "room.h"

namespace lowbit::conv {

class Weights {
  public:
    // `transposed`: the weight's first axis is the source's channels, not the result's.
    Weights(const Convolution& convolution, const Layout& layout, const lowbit_operand& weight, bool transposed);

    void pack(int64_t group);

    const uint8_t* panel(int64_t number) const { return panels_ + number * layout_.panel_bytes; }

    // Of a tap, for the channels of all panels: minus the offset times the sum of the tap's weights.
    const int64_t* corrections(int64_t tap) const { return corrections_ + tap * layout_.panels * kPanel; }

  private:
    void pack_panel(const uint8_t* first, const uint8_t* end, int64_t panel);

    const Convolution& convolution_;
    const Layout& layout_;
    const lowbit_operand& weight_;
    bool transposed_;
    uint8_t* panels_;
    int64_t* corrections_;
    std::vector<int64_t> places_;  // of the taps of sixteen rows
};

}  // namespace lowbit::conv
