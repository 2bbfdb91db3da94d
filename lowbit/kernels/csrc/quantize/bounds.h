// Clipping of one value to PACT's bound.
#pragma once
#include "quantize/quantize.h"

namespace lowbit {

// As `clip`, but a zero at a lower bound of 0 is +0, as from Paddle's maximum.
LOWBIT_INLINE float clip_to_bound(float v, float lower, float upper) {
    v = v <= lower ? lower : v;
    return v > upper ? upper : v;
}

LOWBIT_INLINE float lower_bound(float bound, lowbit_grid grid) { return grid.is_signed ? -bound : 0.0f; }

// A bound of NaN makes everything NaN, as in the reference; comparisons alone would let values through.
LOWBIT_INLINE float propagate_nan(float bound, float scale) { return bound == bound ? scale : bound; }

}  // namespace lowbit
