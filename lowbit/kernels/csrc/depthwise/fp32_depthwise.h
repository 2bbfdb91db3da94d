// grad_weight of depthwise convolutions in fp32, for quantization-aware training.
//
// Planes of one channel are correlated as in depthwise.h, with fp32 instead of integers, so that NCHW need
// not become another layout first. One output per channel. Sums are the same for every instruction set and
// number of threads; a value that is not finite may show in more taps of its channel than it is a term of,
// because padding is multiplied, too.
#pragma once
#include "gemm/gemm.h"

// dW, from X and dY. X is in fp32, or int8 or uint8 times a scale, which is 1 for fp32. `groups`, `channels`
// and `outputs` are equal.
enum lowbit_number { LOWBIT_FLOAT, LOWBIT_INT8, LOWBIT_UINT8 };
LOWBIT_PUBLIC int lowbit_fp32_depthwise_grad_weight(const lowbit_geometry* geometry, const void* x,
                                                    int32_t number, float scale, const float* dy, float* dw);
