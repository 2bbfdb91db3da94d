// The innermost loops of the weight's gradient: a tile of sums is kept in registers while words go by.
#pragma once
#include "grad_weight_plan.h"

namespace lowbit::weight {

// Adds to the sums of `channels` channels of x and `panels` panels of dy.
TileFunction tile_function(Route route, InstructionSet set, int64_t channels, int64_t panels);

// The most channels for which there is one.
int64_t widest_tile(Route route, InstructionSet set);

}  // namespace lowbit::weight
