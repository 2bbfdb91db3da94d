// What follows a product's sums, in one pass: scale and bias, activation, residual sum, rounding to bytes.
//
// runtime.h has the formulas. Sums come in strips: [pixels][16 channels].
#pragma once
#include "runtime/quantized.h"

namespace lowbit::runtime {

constexpr int64_t kChannels = 16;

// Division by a grid's scale as two operations: v * high + v * low, where high + low is 1 / scale to 48 bits.
// The rounded result is that of the division for every v, which is checked around every boundary when a plan
// is made; where it is not (or the processor lacks FMA), `is_exact` is false and the division itself is used.
struct Reciprocal {
    Reciprocal() = default;
    explicit Reciprocal(const Grid& grid);
    float high = 0, low = 0;
    bool is_exact = false;
};

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

    // Found by prepare(), once the rest is known:
    Reciprocal out_reciprocal, middle_reciprocal;
    // Without a residual sum, an activation that clamps becomes bounds of the byte. `is_short`: that is all
    // there is, and no value is too large for an int32.
    bool is_short = false;
    uint8_t lowest = 0, highest = 255;

    // `largest` is a bound of the sums' magnitude.
    void prepare(double largest);
};

// Whether an epilogue can compute the function.
inline bool is_simple(const Unary& unary) {
    return unary.function == Function::identity || unary.function == Function::clamp ||
           unary.function == Function::hard_swish || unary.function == Function::hard_sigmoid;
}

struct StripOutput {
    int64_t pixels, channel;  // the first channel of the strip, for scales and biases
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
