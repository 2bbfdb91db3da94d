// The epilogue of forward and grad_input: sums of 16 channels, pixel by pixel, become scaled fp32 in NCHW
// planes.
#pragma once
#include "gemm/microkernel.h"

namespace lowbit::gemm {

// Where a strip's values go: pixel p of channel c to first[c * plane + (output_offsets ? output_offsets[p] :
// p)].
struct OutputTile {
    float* first;
    int64_t plane;
    const int64_t* output_offsets;
    int64_t pixels, channels;
    const float* scale;  // of each of the sixteen channels
    const float* bias;   // likewise, or null
};

// value = float(sum) * scale + bias, each operation rounded. Sums are [pixels][16]; kSlack more can be read.
void store_dequantized(const int32_t* sums, const OutputTile& out);
void store_dequantized(const int64_t* sums, const OutputTile& out);
void store_dequantized(const float* sums, const OutputTile& out);

// totals += float(sum) * scale[pixel], for sixteen channels.
void accumulate_scaled(const int32_t* sums, const float* scale, int64_t pixels, float* totals);
void accumulate_scaled(const int64_t* sums, const float* scale, int64_t pixels, float* totals);

}  // namespace lowbit::gemm
