// Winograd's transforms, compiled for each instruction set; winograd_tiles.h says what each function does.
#pragma once
#include "instruction_set.h"

#include <stdint.h>

namespace lowbit::winograd {

// Points of a row of tiles, or of kernels, from bytes or taps.
typedef void (*Spread)(const uint8_t* rows, int64_t row_bytes, int64_t tiles, int16_t* points, int64_t apart);

struct Loops {
    Spread source[2], gradient[2];  // of unsigned bytes, and of signed ones
    void (*kernel)(const int16_t* taps, int64_t channels, int16_t* points, int64_t apart);
    // The points of two channels, sixteen tiles at a time, to `panels` panels that lie `panel` apart.
    void (*interleave)(const int16_t* first, const int16_t* second, int64_t panels, int16_t* to, int64_t panel);
    void (*sums)(const int32_t* sums, int64_t apart, int64_t* to);
    void (*values)(const int32_t* sums, int64_t apart, const float* scales, float scale, const float* bias, float* to);
    void (*taps)(const int32_t* sums, int64_t apart, int32_t* taps);
};

const Loops& loops_of(InstructionSet set);

}  // namespace lowbit::winograd
