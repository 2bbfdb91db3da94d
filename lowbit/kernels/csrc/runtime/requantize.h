// What follows a product's sums, in one pass: scale and bias, activation, residual sum, rounding to bytes.
//
// runtime.h has the formulas. Sums come in strips: [pixels][16 channels].
#pragma once
#include "runtime/quantized.h"

namespace lowbit::runtime {

constexpr int64_t kChannels = 16;

struct Epilogue {
    std::vector<float> scale, bias;  // by channel, whole panels
    Unary first;                     // identity, clamp, hard_swish or hard_sigmoid
    bool has_middle = false;         // rounded to a grid before the residual sum
    Grid middle;
    bool has_residual = false;
    Grid residual;
    Unary second;
    Grid out;
    bool has_table = false;  // a function of the rounded byte
    uint8_t table[256] = {};
};

// Whether an epilogue can compute the function.
inline bool is_simple(const Unary& unary) {
    return unary.function == Function::identity || unary.function == Function::clamp ||
           unary.function == Function::hard_swish || unary.function == Function::hard_sigmoid;
}

struct StripOutput {
    int64_t pixels, channel;  // the first channel of the strip, for scales and biases
    int64_t channels;         // that exist, at most 16
    int64_t written;          // bytes that may be written per pixel, at most 16
    const int64_t* offsets;   // of the pixels in `to`
    uint8_t* to;              // the first channel
    const int64_t* residual_offsets;
    const uint8_t* residual;  // may be read 16 bytes at a time
};

void requantize(const Epilogue& epilogue, const int32_t* sums, const StripOutput& out);

// v of the first activation, in fp32: channel c of pixel p to to[offsets[p] + c * plane].
void dequantize_sums(const Epilogue& epilogue, const int32_t* sums, int64_t pixels, int64_t channel,
                     int64_t channels, const int64_t* offsets, int64_t plane, float* to);

}  // namespace lowbit::runtime
