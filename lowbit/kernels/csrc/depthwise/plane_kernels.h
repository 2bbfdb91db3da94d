// Loops over planes of int16 or fp32: packing, correlation, dot products and the epilogue. They are inlined
// into one function per instruction set (plane_kernels.cpp), which the table `Kernels` at the end holds.
#pragma once
#include "common/channel_blocks.h"
#include "common/cpu.h"

#include <cstring>

namespace lowbit::depthwise {

constexpr int64_t kStep = 32;  // pixels per iteration: planes have as many extra at their end

// The source of a plane: (row, column) is image pixel (first_row + row * step_h, first_column + column *
// step_w), or 0 outside.
struct View {
    int64_t height, width;  // of the image
    int64_t first_row, first_column, step_h, step_w;
    int64_t rows, columns;  // of the plane
};

constexpr bool kLittleEndian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef int8_t Signed16 __attribute__((vector_size(16)));
typedef int16_t Shorts16 __attribute__((vector_size(32)));
typedef float Floats8 __attribute__((vector_size(32)));
typedef int32_t Ints8 __attribute__((vector_size(32)));
typedef int16_t Shorts8 __attribute__((vector_size(16)));

// The first `count` of 16 integers, 1 or 2 bytes apart, and zeros for the others.
template <bool kSigned, int kStride>
LOWBIT_INLINE void pack_16(const uint8_t* from, int64_t count, int16_t* to) {
    static const int16_t kMask[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    Shorts16 values, mask;
    if (kStride == 2) {  // the lower bytes of 16-bit elements
        memcpy(&values, from, sizeof values);
        values = kSigned ? (values << 8) >> 8 : values & 0xff;
    } else if (kSigned) {
        Signed16 bytes;
        memcpy(&bytes, from, sizeof bytes);
        values = __builtin_convertvector(bytes, Shorts16);
    } else {
        Bytes16 bytes;
        memcpy(&bytes, from, sizeof bytes);
        values = __builtin_convertvector(bytes, Shorts16);
    }
    memcpy(&mask, kMask + (count < 16 ? 16 - count : 0), sizeof mask);
    values &= mask;
    memcpy(to, &values, sizeof values);
}

// The columns of a plane that lie in the image: [first, last).
struct Columns {
    int64_t first, last;

    explicit Columns(const View& view) {
        const int64_t before = -view.first_column, behind = view.width + before;
        first = before > 0 ? (before + view.step_w - 1) / view.step_w : 0;
        last = behind > 0 ? (behind + view.step_w - 1) / view.step_w : 0;
        last = last < view.columns ? last : view.columns;
    }
};

// Planes are zero before. Rows are packed in order, so that zeros written beyond the end of a row are
// overwritten by the next one, or are in the kStep extra elements.
template <bool kSigned>
LOWBIT_INLINE void pack_as(const uint8_t* image, int64_t image_bytes, int64_t images, const uint8_t* end,
                           const View& view, int16_t* __restrict to) {
    const Columns columns(view);
    const int64_t first = columns.first, last = columns.last;
    if (first >= last) return;
    for (int64_t n = 0; n < images; ++n) {
        for (int64_t row = 0; row < view.rows; ++row, to += view.columns) {
            const int64_t h = view.first_row + row * view.step_h;
            if (h < 0 || h >= view.height) continue;
            const uint8_t* from = image + n * image_bytes + h * view.width + view.first_column;
            const bool can_overread = end - (from + last * view.step_w) >= 16 * view.step_w;
            if (view.step_w == 1 && can_overread) {
                for (int64_t i = first; i < last; i += 16) pack_16<kSigned, 1>(from + i, last - i, to + i);
            } else if (view.step_w == 2 && can_overread && kLittleEndian) {
                for (int64_t i = first; i < last; i += 16) {
                    pack_16<kSigned, 2>(from + 2 * i, last - i, to + i);
                }
            } else {
                for (int64_t i = first; i < last; ++i) {
                    const uint8_t byte = from[i * view.step_w];
                    to[i] = kSigned ? int8_t(byte) : byte;
                }
            }
        }
    }
}

LOWBIT_INLINE void pack(const uint8_t* image, int64_t image_bytes, int64_t images, const uint8_t* end,
                        const View& view, bool is_signed, int16_t* to) {
    if (is_signed) {
        pack_as<true>(image, image_bytes, images, end, view, to);
    } else {
        pack_as<false>(image, image_bytes, images, end, view, to);
    }
}

// Eight elements, one or two apart, as fp32.
template <int kStride>
LOWBIT_INLINE void load_8(const float* from, Floats8& values) {
    if (kStride == 1) {
        memcpy(&values, from, sizeof values);
    } else {
        for (int i = 0; i < 8; ++i) values[i] = from[i * kStride];
    }
}

template <int kStride, class Byte>
LOWBIT_INLINE void load_8(const Byte* from, Floats8& values) {
    typedef Byte Bytes8 __attribute__((vector_size(8)));
    Ints8 integers;
    if (kStride == 1) {
        Bytes8 bytes;
        memcpy(&bytes, from, sizeof bytes);
        integers = __builtin_convertvector(bytes, Ints8);
    } else {  // the lower bytes of 16-bit elements
        Shorts8 pairs;
        memcpy(&pairs, from, sizeof pairs);
        pairs = Byte(-1) < Byte(0) ? (pairs << 8) >> 8 : pairs & 0xff;
        integers = __builtin_convertvector(pairs, Ints8);
    }
    values = __builtin_convertvector(integers, Floats8);
}

// The first `count` of eight elements, and zeros for the others.
template <int kStride, class T>
LOWBIT_INLINE void pack_8(const T* from, int64_t count, float* to) {
    static const int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    Ints8 mask, bits;
    Floats8 values;
    load_8<kStride>(from, values);
    memcpy(&mask, kMask + (count < 8 ? 8 - count : 0), sizeof mask);
    memcpy(&bits, &values, sizeof bits);
    bits &= mask;
    memcpy(to, &bits, sizeof bits);
}

// pack_as to fp32.
template <class T>
LOWBIT_INLINE void pack_floats(const T* image, int64_t image_size, int64_t images, const T* end,
                               const View& view, float* __restrict to) {
    const Columns columns(view);
    const int64_t first = columns.first, last = columns.last;
    if (first >= last) return;
    for (int64_t n = 0; n < images; ++n) {
        for (int64_t row = 0; row < view.rows; ++row, to += view.columns) {
            const int64_t h = view.first_row + row * view.step_h;
            if (h < 0 || h >= view.height) continue;
            const T* from = image + n * image_size + h * view.width + view.first_column;
            const bool can_overread = end - (from + last * view.step_w) >= 8 * view.step_w;
            if (view.step_w == 1 && can_overread) {
                for (int64_t i = first; i < last; i += 8) pack_8<1>(from + i, last - i, to + i);
            } else if (view.step_w == 2 && can_overread && kLittleEndian) {
                for (int64_t i = first; i < last; i += 8) pack_8<2>(from + 2 * i, last - i, to + i);
            } else {
                for (int64_t i = first; i < last; ++i) to[i] = from[i * view.step_w];
            }
        }
    }
}

// sums[i] = the sum over taps of plane[offsets[tap] + i] * weights[tap].
LOWBIT_INLINE void correlate(const int16_t* plane, const int64_t* offsets, const int16_t* weights,
                             int64_t taps, int64_t count, int32_t* __restrict sums) {
    for (int64_t start = 0; start < count; start += kBlock) {
        const int64_t now = count - start < kBlock ? count - start : kBlock;
        for (int64_t i = 0; i < now; ++i) sums[start + i] = 0;
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int16_t* from = plane + offsets[tap] + start;
            for (int64_t i = 0; i < now; ++i) sums[start + i] += int32_t(from[i]) * int32_t(weights[tap]);
        }
    }
}

// values[i] = the fp32 sum over taps of (the sum over planes of plane[offsets[tap] + i] * weights[tap]) *
// scales[offsets[tap] + i]. The sum over planes is exact in fp32. Writes whole steps.
LOWBIT_INLINE void correlate_scaled(const float* plane, int64_t planes, int64_t stride,
                                    const int64_t* offsets, const float* weights, int64_t taps,
                                    const float* scales, int64_t count, float* values) {
    for (int64_t i = 0; i < count; i += kStep) {
        Floats8 totals[4] = {};
        for (int64_t tap = 0; tap < taps; ++tap) {
            LOWBIT_UNROLLED
            for (int64_t part = 0; part < 4; ++part) {
                const int64_t at = offsets[tap] + i + part * 8;
                Floats8 sum = {}, scale;
                for (int64_t p = 0; p < planes; ++p) {
                    Floats8 integers;
                    memcpy(&integers, plane + p * stride + at, sizeof integers);
                    sum += integers * weights[tap * planes + p];
                }
                memcpy(&scale, scales + at, sizeof scale);
                totals[part] += sum * scale;
            }
        }
        LOWBIT_UNROLLED
        for (int64_t part = 0; part < 4; ++part) {
            memcpy(values + i + part * 8, &totals[part], sizeof totals[part]);
        }
    }
}

// Planes of several images, `size` elements apart, of which the first `used` count.
struct Planes {
    int64_t images, size, used;
};

// totals[tap] += the sum of a[i] * plane[offsets[tap] + i] over the elements that count, in sixteen partial
// sums of fp32; behind them, `a` is 0 up to the end of a step.
template <int kTaps>
LOWBIT_INLINE void dots_of(const float* a, const float* plane, const int64_t* offsets, Planes planes,
                           double* totals) {
    Floats8 low[kTaps] = {}, high[kTaps] = {};
    for (int64_t start = 0; start < planes.images * planes.size; start += planes.size) {
        for (int64_t i = start; i < start + planes.used; i += kLanes) {
            Floats8 left, right;
            memcpy(&left, a + i, sizeof left);
            memcpy(&right, a + i + 8, sizeof right);
            LOWBIT_UNROLLED
            for (int tap = 0; tap < kTaps; ++tap) {
                Floats8 one, other;
                memcpy(&one, plane + offsets[tap] + i, sizeof one);
                memcpy(&other, plane + offsets[tap] + i + 8, sizeof other);
                low[tap] += left * one;
                high[tap] += right * other;
            }
        }
    }
    for (int tap = 0; tap < kTaps; ++tap) {
        const Floats8 sums = low[tap] + high[tap];
        totals[tap] += double((sums[0] + sums[4]) + (sums[2] + sums[6])) +
                       double((sums[1] + sums[5]) + (sums[3] + sums[7]));
    }
}

// As many taps at a time as registers hold the sums of.
LOWBIT_INLINE void dots(const float* a, const float* plane, const int64_t* offsets, int64_t taps,
                        Planes planes, double* totals) {
    int64_t tap = 0;
    for (; tap + 5 <= taps; tap += 5) dots_of<5>(a, plane, offsets + tap, planes, totals + tap);
    for (; tap + 2 <= taps; tap += 2) dots_of<2>(a, plane, offsets + tap, planes, totals + tap);
    for (; tap < taps; ++tap) dots_of<1>(a, plane, offsets + tap, planes, totals + tap);
}

LOWBIT_INLINE void to_floats(const int16_t* from, int64_t count, float* __restrict to) {
    for (int64_t i = 0; i < count; ++i) to[i] = float(from[i]);
}

// The sum of a[i] * b[i]; int32 must hold it and every partial sum.
LOWBIT_INLINE int32_t dot(const int16_t* a, const int16_t* b, int64_t count) {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += int32_t(a[i]) * int32_t(b[i]);
    return sum;
}

// Where a plane's results go: row r to image row first_row + r * out_stride_h, columns likewise; others are
// dropped.
struct OutputView {
    int64_t rows, columns;  // of the plane
    int64_t height, width;  // of the image
    int64_t first_row, first_column, out_stride_h, out_stride_w;
};

// row(from, count, to, stride, more) for the used part of every row of one image. `more`: up to 8 values may
// be written beyond `count`, because the next row overwrites them.
template <class T, class To, class Row>
LOWBIT_INLINE void each_row(const T* from, const OutputView& t, To* to, Row row) {
    const int64_t before = -t.first_column, behind = t.width + before;
    const int64_t first = before > 0 ? (before + t.out_stride_w - 1) / t.out_stride_w : 0;
    int64_t last = behind > 0 ? (behind + t.out_stride_w - 1) / t.out_stride_w : 0;
    last = last < t.columns ? last : t.columns;
    if (first >= last) return;
    const int64_t count = last - first;
    const To* end = to + t.height * t.width;
    for (int64_t r = 0; r < t.rows; ++r) {
        const int64_t h = t.first_row + r * t.out_stride_h;
        if (h < 0 || h >= t.height) continue;
        To* start = to + h * t.width + t.first_column + first * t.out_stride_w;
        if (t.out_stride_w == 1) {
            row(from + r * t.columns + first, count, start, 1,
                t.out_stride_h == 1 && end - start >= count + 8);
        } else {
            row(from + r * t.columns + first, count, start, t.out_stride_w, false);
        }
    }
}

LOWBIT_INLINE void copy_sums(const int32_t* from, const OutputView& target, int64_t* to) {
    const auto row = [](const int32_t* sums, int64_t count, int64_t* out, int64_t stride, bool)
                         LOWBIT_INLINE_LAMBDA {
                             for (int64_t i = 0; i < count; ++i) out[i * stride] = sums[i];
                         };
    each_row(from, target, to, row);
}

// Writes of(value) for the used values.
template <class T, class Of>
LOWBIT_INLINE void dequantize_as(const T* from, const OutputView& target, float* to, Of of) {
    const auto row = [=](const T* values, int64_t count, float* out, int64_t stride, bool more)
                         LOWBIT_INLINE_LAMBDA {
                             if (more) {
                                 for (int64_t i = 0; i < count; i += 8) {
                                     float eight[8];
                                     for (int64_t j = 0; j < 8; ++j) eight[j] = of(values[i + j]);
                                     memcpy(out + i, eight, sizeof eight);
                                 }
                             } else {
                                 for (int64_t i = 0; i < count; ++i) out[i * stride] = of(values[i]);
                             }
                         };
    each_row(from, target, to, row);
}

// fp32(value) * scale, plus the bias if there is one.
template <class T>
LOWBIT_INLINE void dequantize(const T* from, const OutputView& target, float scale, const float* bias,
                              float* to) {
    if (bias) {
        const float added = *bias;
        dequantize_as(from, target, to, [=](T v) LOWBIT_INLINE_LAMBDA { return float(v) * scale + added; });
    } else {
        dequantize_as(from, target, to, [=](T v) LOWBIT_INLINE_LAMBDA { return float(v) * scale; });
    }
}

struct Kernels {
    void (*pack)(const uint8_t* image, int64_t image_bytes, int64_t images, const uint8_t* end,
                 const View& view, bool is_signed, int16_t* to);
    // Writes whole steps. int16 sums hold `budget` products.
    void (*correlate)(const int16_t* plane, const int64_t* offsets, const int16_t* weights, int64_t taps,
                      int64_t budget, int64_t count, int32_t* sums);
    void (*correlate_scaled)(const float* plane, int64_t planes, int64_t stride, const int64_t* offsets,
                             const float* weights, int64_t taps, const float* scales, int64_t count,
                             float* values);
    void (*to_floats)(const int16_t* from, int64_t count, float* to);
    void (*pack_floats)(const float* image, int64_t image_size, int64_t images, const float* end,
                        const View& view, float* to);
    void (*pack_signed)(const int8_t* image, int64_t image_size, int64_t images, const int8_t* end,
                        const View& view, float* to);
    void (*pack_unsigned)(const uint8_t* image, int64_t image_size, int64_t images, const uint8_t* end,
                          const View& view, float* to);
    void (*dots)(const float* a, const float* plane, const int64_t* offsets, int64_t taps, Planes planes,
                 double* totals);
    int32_t (*dot)(const int16_t* a, const int16_t* b, int64_t count);
    void (*copy_sums)(const int32_t* from, const OutputView& target, int64_t* to);
    void (*dequantize_sums)(const int32_t* from, const OutputView& target, float scale, const float* bias,
                            float* to);
    void (*scale_values)(const float* from, const OutputView& target, float scale, const float* bias,
                         float* to);
};

const Kernels& kernels_for(InstructionSet isa);

}  // namespace lowbit::depthwise
