// Products of two computed tensors of bytes, as attention has them.
#pragma once
#include "runtime/fuse.h"

namespace lowbit::runtime {

struct MatMulOperand {
    int slot;  // bytes in ONNX's order
    Dims dims;
    IntegerTensor integers;
};

// [..., M, K] times [..., K, N] to fp32, with exact sums.
StepPointer matmul_step(const MatMulOperand& a, const MatMulOperand& b, const Dims& dims, int to);

}  // namespace lowbit::runtime
