// The innermost loops of the weight's gradient: a tile of sums is kept in registers while words go by.
#pragma once
#include "grad_weight_plan.h"

namespace lowbit::weight {

// Adds to the sums of `channels` channels of x and `panels` panels of dy.
TileFunction tile_function(Route route, InstructionSet set, int64_t channels, int64_t panels);

// The most channels for which there is one.
int64_t widest_tile(Route route, InstructionSet set);

#if LOWBIT_AMX
// The same with AMX, for `count` tiles at once, each of as many channels as tiles have rows, count * panels being
// at most 4. Their x and sums are given apart from what they have in common.
void add_amx(const WeightTile& tile, const uint8_t* const* x, int32_t* const* sums, int64_t count, int64_t panels,
             int64_t tail);
#endif

}  // namespace lowbit::weight
