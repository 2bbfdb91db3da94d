// Depthwise convolutions: every input channel has kernels of its own, so that there is no sum over channels
// for a GEMM.
//
// The three products of gemm.h are computed channel by channel as correlations of planes. A plane is one
// channel of some images as int16, row after row with padding. One tap of all pixels is then the same plane
// at an offset, and a loop over the plane needs no special treatment of rows; pixels outside the result are
// computed and dropped. With a stride there is one plane per remainder of row and column. Files:
//   planes.h           layouts of the planes, and the offsets of the taps
//   depthwise.cpp      the three products of integers
//   fp32_depthwise.h   grad_weight in fp32
//   plane_kernels.h    loops over planes; plane_kernels.cpp compiles them for each instruction set
// The instruction set and the bounds of the operands decide whether sums are accumulated in int16 (4 bits) or
// int32.
#pragma once
#include "gemm/gemm.h"

namespace lowbit {

// One input channel per group, several groups, and few enough products: int32 holds the sum of a pixel, and
// fp32 that of one tap.
bool is_depthwise(const lowbit_geometry& geometry);

void depthwise_forward(const lowbit_geometry& geometry, const lowbit_operand& x, const lowbit_operand& w,
                       const float* bias, float* y, int64_t* sums);
void depthwise_grad_input(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& w,
                          float* dx, int64_t* sums);
void depthwise_grad_weight(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& x,
                           float* dw, int64_t* sums);

}  // namespace lowbit
