// What the weight's gradient does before and after the products, compiled for each instruction set.
// grad_weight_pack.h and grad_weight_sums.h say what each function does.
#pragma once
#include "grad_weight_plan.h"

namespace lowbit::weight {

struct WeightLoops {
    void (*pack_x)(const WeightPlan& plan, const uint8_t* x, int64_t channel, uint8_t* out);
    void (*pack_dy)(const WeightPlan& plan, const uint8_t* dy, int64_t panel, uint8_t* out);
    void (*sum_dy)(const WeightPlan& plan, const uint8_t* dy, int64_t* sums);
    void (*empty)(int32_t* narrow, int64_t* wide, const int64_t* shift, int64_t rows, int64_t width);
    void (*scale_narrow)(int32_t* sums, const int64_t* shift, const float* scale_dy, const float* scale_x,
                         float* values, bool add, int64_t channels, int64_t taps, int64_t width);
    void (*scale_wide)(int64_t* sums, const int64_t* shift, const float* scale_dy, const float* scale_x,
                       float* values, bool add, int64_t channels, int64_t taps, int64_t width);
    void (*put_values)(const float* from, int64_t rows, int64_t width, float* to, int64_t to_output,
                       int64_t outputs);
    void (*put_sums)(const int64_t* from, int64_t rows, int64_t width, int64_t* to, int64_t to_output,
                     int64_t outputs);
};

const WeightLoops& weight_loops(InstructionSet set);

}  // namespace lowbit::weight
