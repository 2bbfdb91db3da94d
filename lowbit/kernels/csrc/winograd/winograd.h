// 3x3 convolutions with stride 1 by Winograd's F(2x2, 3x3) in integers: 16 multiplications per 2x2 outputs
// instead of 36.
//
// Exact: the transforms add and subtract integers, halves are of even numbers, and int32 holds the sums
// (`applies` checks the bounds). Transformed values need int16, so that it pays where bytes have no faster
// way: 8-bit operands on AVX2 without VNNI, and everything in portable C++.
//
// A tile is 2x2 outputs; it becomes 16 points. Points are multiplied as 16 independent matrix products with
// the int16 micro-kernel of gemm/. Files:
//   winograd.cpp     when it applies; forward and grad_input
//   grad_weight.cpp  grad_weight
//   transforms.h     tiles of an image, and the transforms for each instruction set
//   transforms.cpp   their formulas
#pragma once
#include "gemm/conv_gemm.h"
#include "gemm/grad_weight.h"

namespace lowbit::winograd {

// Whether a product can be computed exactly this way and is faster for it.
bool applies(const gemm::Convolution& convolution, const gemm::Product& product);
bool applies(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x);

// forward or grad_input, and grad_weight. Throw std::bad_alloc.
void run(const gemm::Convolution& convolution, const gemm::Product& product);
void grad_weight(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums);

// Tiles whose sums of products of dy and x int32 holds.
int64_t tiles_in_int32(const lowbit_operand& dy, const lowbit_operand& x);

}  // namespace lowbit::winograd
