// The innermost loops of the weight's gradient with AMX: tiles of channels times outputs; see amx.h.
//
// Packed for VNNI, the operands fit: the words of a channel of x lie one after the other, and channels are equally
// far from each other.
#include "grad_weight_tiles.h"

#if LOWBIT_AMX
#include "amx.h"

namespace lowbit::weight {
namespace {

// Sums of left operand kTile / kRights, in panel kTile % kRights: from memory and back.
template <int kLefts, int kRights, bool kLoad, int kTile = 0>
LOWBIT_AMX_INLINE void move(int32_t* const* sums, int64_t apart) {
    int32_t* at = sums[kTile / kRights] + kTile % kRights * kPanel;
    if constexpr (kLoad) {
        amx::load<kTile>(at, apart);
    } else {
        amx::store<kTile>(at, apart);
    }
    if constexpr (kTile + 1 < kLefts * kRights) move<kLefts, kRights, kLoad, kTile + 1>(sums, apart);
}

template <int kLefts, int kRights>
LOWBIT_AMX_TARGET void add(const WeightTile& t, const uint8_t* const* x, int32_t* const* sums, int64_t tail) {
    amx::Left lefts[kLefts];
    for (int i = 0; i < kLefts; ++i) lefts[i] = {x[i], t.x_channel};
    const int64_t apart = t.sums_channel * int64_t(sizeof(int32_t));
    move<kLefts, kRights, true>(sums, apart);
    const uint8_t* dy = t.dy;
    for (int64_t row = 0; row < t.rows; ++row) {
        dy = amx::add_words<kLefts, kRights>(lefts, dy, t.dy_panel, row * t.x_row, t.words, tail);
    }
    move<kLefts, kRights, false>(sums, apart);
}

}  // namespace

void add_amx(const WeightTile& tile, const uint8_t* const* x, int32_t* const* sums, int64_t count, int64_t panels,
             int64_t tail) {
    constexpr decltype(&add<1, 1>) kAdd[][kMostPanels] = {{add<1, 1>, add<1, 2>, add<1, 3>, add<1, 4>},
                                                         {add<2, 1>, add<2, 2>, nullptr, nullptr},
                                                         {add<3, 1>, nullptr, nullptr, nullptr},
                                                         {add<4, 1>, nullptr, nullptr, nullptr}};
    kAdd[count - 1][panels - 1](tile, x, sums, tail);
}

}  // namespace lowbit::weight
#endif
