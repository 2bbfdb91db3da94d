// The matrix products of Winograd's points.
#pragma once
#include "common/cpu.h"

namespace lowbit::fp32_winograd {

constexpr int64_t kPanel = 16;  // columns that a micro-kernel computes at a time

// out[r][p * out_panel + lane] = (out +) sum over i of a[r * a_row + i * a_step] * b[p * b_panel + i * b_step
// + lane], for 16 lanes. Every element is one chain of fused multiply-adds in the order of i.
struct Product {
    int64_t rows, panels, depth;
    const float* a;
    int64_t a_row, a_step;
    const float* b;
    int64_t b_panel, b_step;
    float* out;
    int64_t out_row, out_panel;
    bool adds;  // to what is there
};

bool has_fused_multiply_add();
void multiply(const Product& product);

}  // namespace lowbit::fp32_winograd
