// A product from beginning to end: pack, sum up, finish.
#pragma once
#include "convolution.h"

namespace lowbit::conv {

struct Product {
    const lowbit_operand* source;
    const lowbit_operand* weight;
    bool transposed;           // the weight's first axis is the source's channels, not the result's
    int64_t scale_of_group;    // the weight's scale for the result's channel c in group g is
    int64_t scale_of_channel;  // scale[g * scale_of_group + c * scale_of_channel]
    bool by_tap;               // the source has scales by pixel: taps are added up in fp32
    const float* bias;         // or null
    float* values;             // the result,
    int64_t* sums;             // or only the sums, when not null
};

// std::bad_alloc when memory runs out.
void run(const Convolution& convolution, const Product& product);

}  // namespace lowbit::conv
