// The C interface of lowbit's kernels: raw pointers to contiguous fp32, called from Python through ctypes.
//
// A tensor is seen as [outer, channels, inner]: element (o, c, i) lies at (o * channels + c) * inner + i and
// uses scale[c] (and bound[c]). One scale for the whole tensor is outer = channels = 1. Pointers must not
// overlap, except that a null pointer says "not wanted". Nothing is allocated and nothing can fail.
//
// No axis of a tensor is 0.
//
// Results are the same bits for every instruction set and number of threads: no operation is reordered between
// them, and sums are added up in the same 16 partial sums everywhere.
#pragma once
#include <stdint.h>

#if defined(__GNUC__)
#define LOWBIT_PUBLIC extern "C" __attribute__((visibility("default")))
#else
#define LOWBIT_PUBLIC extern "C"
#endif

struct lowbit_layout {
    int64_t outer, channels, inner;
};

struct lowbit_grid {
    float lowest, highest;
    int32_t is_signed;  // only for bounds: they are [-bound, bound], or [0, bound]
};

// What the library was built from, for finding one that is out of date.
LOWBIT_PUBLIC const char* lowbit_fingerprint(void);

// The instruction sets that this processor can run, best first, parted by spaces; the one in use; and
// choosing another (for tests): 0, or -1 when the processor lacks it.
LOWBIT_PUBLIC const char* lowbit_variants(void);
LOWBIT_PUBLIC const char* lowbit_variant(void);
LOWBIT_PUBLIC int lowbit_select_variant(const char* name);

// y = clip(round(clip(x, bound) / scale), grid), times the scale unless `integers`; no bound when null.
LOWBIT_PUBLIC void lowbit_quantize(const float* x, float* y, const float* scale, const float* bound,
                                   lowbit_layout layout, lowbit_grid grid, int32_t integers);

// Straight through: dx = dy where nothing was clipped, by the grid (half a step of room) or the bound.
// dbound[c] = the sum of dy above the bound minus, signed, that below.
LOWBIT_PUBLIC void lowbit_quantize_grad(const float* x, const float* dy, float* dx, const float* scale,
                                        const float* bound, float* dbound, lowbit_layout layout,
                                        lowbit_grid grid);

// LSQ, with v = x / step and q = clip(round(v)): dx = dy where lowest < v < highest;
// dstep[c] = the sum of dy * (q - v) there and of dy * q elsewhere.
LOWBIT_PUBLIC void lowbit_lsq_grad(const float* x, const float* dy, float* dx, const float* step,
                                   float* dstep, lowbit_layout layout, lowbit_grid grid);
