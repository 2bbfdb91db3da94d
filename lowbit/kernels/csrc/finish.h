// From sums of sixteen channels, pixel by pixel, to fp32 in planes: scaled, with the bias added, transposed.
#pragma once
#include "tiles.h"

namespace lowbit::conv {

// Where the values of a strip go: pixel p of channel c to first[c * plane + (targets ? targets[p] : p)].
struct Planes {
    float* first;
    int64_t plane;
    const int64_t* targets;
    int64_t pixels, channels;
    const float* scale;  // of each of the sixteen channels
    const float* bias;   // likewise, or null
};

// value = float(sum) * scale + bias, each operation rounded; sums are [pixels][16], kSlack more can be read.
void finish(const int32_t* sums, const Planes& planes);
void finish(const int64_t* sums, const Planes& planes);
void finish(const float* sums, const Planes& planes);

// totals += float(sum) * scale[pixel], for sixteen channels.
void add_scaled(const int32_t* sums, const float* scale, int64_t pixels, float* totals);
void add_scaled(const int64_t* sums, const float* scale, int64_t pixels, float* totals);

#if LOWBIT_X86
void finish_avx512(const int32_t* sums, const Planes& planes);
void finish_avx512(const float* sums, const Planes& planes);
void finish_avx2(const int32_t* sums, const Planes& planes);
void finish_avx2(const float* sums, const Planes& planes);
void add_scaled_avx2(const int32_t* sums, const float* scale, int64_t pixels, float* totals);
#endif

}  // namespace lowbit::conv
