// The loops of the depthwise products, compiled for each instruction set; depthwise_loops.h says what they do.
#pragma once
#include "depthwise_loops.h"
#include "instruction_set.h"

namespace lowbit::depthwise {

struct Loops {
    void (*pack)(const uint8_t* image, int64_t image_bytes, int64_t images, const uint8_t* end, const View& view,
                 bool is_signed, int16_t* to);
    // Writes a whole number of steps. Sums of 16 bits hold `budget` products.
    void (*correlate)(const int16_t* plane, const int64_t* offsets, const int16_t* weights, int64_t taps,
                      int64_t budget, int64_t count, int32_t* sums);
    void (*correlate_scaled)(const float* plane, int64_t planes, int64_t apart, const int64_t* offsets,
                             const float* weights, int64_t taps, const float* scales, int64_t count, float* values);
    void (*to_floats)(const int16_t* from, int64_t count, float* to);
    int32_t (*dot)(const int16_t* a, const int16_t* b, int64_t count);
    void (*copy_sums)(const int32_t* from, const Target& target, int64_t* to);
    void (*finish_sums)(const int32_t* from, const Target& target, float scale, const float* bias, float* to);
    void (*finish_values)(const float* from, const Target& target, float scale, const float* bias, float* to);
};

const Loops& loops_for(InstructionSet set);

}  // namespace lowbit::depthwise
