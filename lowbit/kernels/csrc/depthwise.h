// The three products of a depthwise convolution, where every channel has kernels of its own: what products.h
// says, worked out plane by plane. They throw std::bad_alloc when memory runs out.
#pragma once
#include "products.h"

namespace lowbit {

// One input channel per group and more than one group; and sums of a pixel that 32 bits can hold, of one tap fp32.
bool is_depthwise(const lowbit_geometry& geometry);

void depthwise_forward(const lowbit_geometry& geometry, const lowbit_operand& x, const lowbit_operand& w,
                       const float* bias, float* y, int64_t* sums);
void depthwise_grad_input(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& w,
                          float* dx, int64_t* sums);
void depthwise_grad_weight(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& x,
                           float* dw, int64_t* sums);

}  // namespace lowbit
