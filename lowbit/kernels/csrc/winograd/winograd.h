// 3x3 convolutions with stride 1 by Winograd's F(4x4, 3x3) in integers: 36 multiplications per 4x4 outputs
// instead of 144.
//
// Exact: sums and transforms are integers modulo 2^32, which determine a result of up to 26 bits
// (transforms.cpp says why). Where a result could be larger, it is computed in parts. Transformed values need
// int16, so that it pays where bytes have no faster way: on AVX2 without VNNI, and in portable C++.
//
// A tile is 4x4 outputs; it becomes 36 points. Points are multiplied as 36 independent matrix products.
// Files:
//   winograd.cpp     when it applies; forward and grad_input
//   grad_weight.cpp  grad_weight
//   transforms.h     tiles of an image, and the transforms for each instruction set
//   panels.cpp       loads what the transforms read
//   transforms.cpp   their formulas; those of results in result_transforms.h
//   products.h       the products of points, and their micro-kernels in products.cpp
#pragma once
#include "gemm/conv_gemm.h"
#include "gemm/grad_weight.h"

namespace lowbit::winograd {

// Whether a product can be computed exactly this way and is faster for it.
bool applies(const gemm::Convolution& convolution, const gemm::Product& product);
bool applies(const wgrad::Plan& plan, const lowbit_operand& dy);

// forward or grad_input, and grad_weight. Throw std::bad_alloc. `run` returns false, at once, where a result
// is too large for the product's multiples.
bool run(const gemm::Convolution& convolution, const gemm::Product& product);
void grad_weight(const wgrad::Plan& plan, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums);

// The largest magnitude that an operand may have, at least 1.
int64_t max_magnitude(const lowbit_operand& operand);

}  // namespace lowbit::winograd
