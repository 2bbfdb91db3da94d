// Products of 3x3 kernels in integers with 16 multiplications for four pixels in the place of 36, by Winograd's
// transforms: exact, since they add and subtract integers, and since int32 holds what comes of it.
//
// The points of a tile need int16, so that it pays where there is nothing faster for bytes: 8 bits without VNNI, and
// everything in portable C++. What is multiplied are sixteen matrices, one for every point.
#pragma once
#include "driver.h"
#include "grad_weight_plan.h"

namespace lowbit::winograd {

// Whether a product can be computed this way and is faster for it.
bool fits(const conv::Convolution& convolution, const conv::Product& product);
bool fits(const weight::WeightPlan& plan, const lowbit_operand& dy, const lowbit_operand& x);

// forward or grad_input, and grad_weight. std::bad_alloc when memory runs out.
void run(const conv::Convolution& convolution, const conv::Product& product);
void grad_weight(const weight::WeightPlan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums);

// Tiles over which the points of an output's gradient and of an input are summed up in int32.
int64_t tiles_in_int32(const lowbit_operand& dy, const lowbit_operand& x);

}  // namespace lowbit::winograd
