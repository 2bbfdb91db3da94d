// grad_weight before and after the micro-kernels: packing of x and dy, and scaling and transposition of the
// sums. grad_weight.h describes the layouts. Loops are inlined into one function per instruction set; see
// cpu.h.
#include "common/channel_blocks.h"
#include "gemm/grad_weight.h"

#include <cstring>
#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::wgrad {

constexpr int64_t kPackWords =
    512;  // words per output that are prepared before they are interleaved: 16 rows are 32 KB

// One packed integer: a byte with the offset added, whatever its sign, or an int16 with the value.
template <class T, bool kSigned>
LOWBIT_INLINE T packed(uint8_t byte, int32_t shift) {
    if (sizeof(T) == 1) return T(byte + shift);
    return kSigned ? T(int8_t(byte)) : T(byte);
}

// to[i * lanes + lane] = from[lane][i * stride]; one lane where a word holds adjacent pixels.
template <class T, bool kSigned, int kLanes>
LOWBIT_INLINE void interleave(T* __restrict to, const uint8_t* const* from, int64_t count, int64_t stride,
                              int32_t shift) {
    const uint8_t* a = from[0];
    const uint8_t* b = from[kLanes > 1 ? 1 : 0];
    const uint8_t* c = from[kLanes > 2 ? 2 : 0];
    const uint8_t* d = from[kLanes > 2 ? 3 : 0];
    const auto all = [=](int64_t step) LOWBIT_INLINE_LAMBDA {
        for (int64_t i = 0; i < count; ++i) {
            to[i * kLanes] = packed<T, kSigned>(a[i * step], shift);
            if (kLanes > 1) to[i * kLanes + 1] = packed<T, kSigned>(b[i * step], shift);
            if (kLanes > 2) to[i * kLanes + 2] = packed<T, kSigned>(c[i * step], shift);
            if (kLanes > 2) to[i * kLanes + 3] = packed<T, kSigned>(d[i * step], shift);
        }
    };
    if (stride == 1) {
        all(1);
    } else {
        all(stride);
    }
}

// The rows of a channel are packed in order, kChunk bytes at a time. What is written beyond the end of a row
// is overwritten by the next one; a channel has space for a chunk beyond its last.

typedef uint8_t Bytes __attribute__((vector_size(32)));

// Sixteen pixels of four lanes.
#if LOWBIT_X86

LOWBIT_INLINE void pack_16(uint8_t* to, const uint8_t* const (&from)[4], int64_t at, int32_t shift) {
    __m128i lanes[4], *out = reinterpret_cast<__m128i*>(to);
    const __m128i added = _mm_set1_epi8(char(shift));
    for (int i = 0; i < 4; ++i) {
        lanes[i] = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from[i] + at)), added);
    }
    // Interleaves bytes to pairs, then pairs to words.
    const __m128i low = _mm_unpacklo_epi8(lanes[0], lanes[1]),
                  low_too = _mm_unpacklo_epi8(lanes[2], lanes[3]);
    const __m128i high = _mm_unpackhi_epi8(lanes[0], lanes[1]),
                  high_too = _mm_unpackhi_epi8(lanes[2], lanes[3]);
    _mm_storeu_si128(out, _mm_unpacklo_epi16(low, low_too));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low, low_too));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high, high_too));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high, high_too));
}

#else

LOWBIT_INLINE void pack_16(uint8_t* to, const uint8_t* const (&from)[4], int64_t at, int32_t shift) {
    for (int64_t i = 0; i < 16; ++i) {
        for (int lane = 0; lane < 4; ++lane) to[4 * i + lane] = uint8_t(from[lane][at + i] + shift);
    }
}

#endif

// The pixels of one chunk: 64 bytes of one lane, 16 of four lanes; 32 int16 of one lane, 16 of two.
template <class T, bool kSigned, int kLanes>
LOWBIT_INLINE void pack_chunk(T* to, const uint8_t* const (&from)[kLanes], int64_t at, int32_t shift) {
    if constexpr (sizeof(T) == 1 && kLanes == 4) {
        pack_16(to, from, at, shift);
    } else if constexpr (sizeof(T) == 1) {
        for (int64_t i = 0; i < kChunk; i += sizeof(Bytes)) {
            Bytes bytes;
            memcpy(&bytes, from[0] + at + i, sizeof bytes);
            bytes += uint8_t(shift);
            memcpy(to + i, &bytes, sizeof bytes);
        }
    } else {
        int16_t values[kChunk / 2];
        for (int64_t i = 0; i < kChunk / 2 / kLanes; ++i) {
            for (int lane = 0; lane < kLanes; ++lane) {
                values[i * kLanes + lane] = packed<int16_t, kSigned>(from[lane][at + i], 0);
            }
        }
        memcpy(to, values, sizeof values);
    }
}

LOWBIT_INLINE void fill(uint8_t* to, int64_t bytes, int32_t zero) {
    Bytes zeros = {};
    zeros += uint8_t(zero);
    for (int64_t i = 0; i < bytes; i += sizeof zeros) memcpy(to + i, &zeros, sizeof zeros);
}

template <class T, bool kSigned, int kLanes>
LOWBIT_INLINE void pack_x_as(const Plan& plan, const uint8_t* x, int64_t c, uint8_t* out) {
    constexpr int64_t kPixel = kLanes * sizeof(T), kPixels = kChunk / kPixel;
    const lowbit_geometry& g = plan.g;
    const int64_t step = g.stride_w;
    const bool by_images = plan.lanes_are == Lanes::images;
    const uint8_t* end = x + g.batch * g.channels * g.height * g.width;
    const uint8_t* zeros = plan.zeros.data();
    for (int64_t set = 0; set < plan.sets; ++set) {
        for (int64_t row = 0; row < plan.rows; ++row) {
            const uint8_t* from[kLanes];
            bool any = false;
            for (int64_t lane = 0; lane < kLanes; ++lane) {
                const int64_t n = by_images ? set * kLanes + lane : set;
                const int64_t h = row - g.pad_top + (by_images ? 0 : lane * plan.set_rows * g.stride_h);
                const bool there = n < g.batch && h >= 0 && h < g.height;
                from[lane] = there ? x + ((n * g.channels + c) * g.height + h) * g.width : zeros;
                any |= there;
            }
            for (int64_t phase = 0; phase < step; ++phase) {
                const ColumnSpan& span = plan.spans[phase];
                if (!plan.used_rows[row] || !span.used) continue;
                uint8_t* to = out + set * plan.set_bytes + row * plan.row_bytes + phase * plan.phase_bytes;
                if (!any || span.first == span.last) {
                    fill(to, plan.phase_bytes, plan.zero);
                    continue;
                }
                const uint8_t* start[kLanes];
                const int64_t count = span.last - span.first;
                bool can_overread = step == 1;  // whole chunks
                for (int lane = 0; lane < kLanes; ++lane) {
                    start[lane] = from[lane] + span.first * step + phase - g.pad_left;
                    can_overread &= from[lane] == zeros || end - start[lane] >= count + kPixels;
                }
                T* pixels = reinterpret_cast<T*>(to + span.first * kPixel);
                fill(to, span.first * kPixel, plan.zero);
                if (can_overread) {
                    for (int64_t i = 0; i < count; i += kPixels) {
                        pack_chunk<T, kSigned, kLanes>(pixels + i * kLanes, start, i, plan.zero);
                    }
                } else {
                    interleave<T, kSigned, kLanes>(pixels, start, count, step, plan.zero);
                }
                fill(to + span.last * kPixel, plan.phase_bytes - span.last * kPixel, plan.zero);
            }
        }
    }
}

// Transposes the rows of 16 outputs, `count` words each, to `count` groups of 16 words.
LOWBIT_INLINE void interleave_outputs(const uint8_t* const* rows, int64_t count, uint8_t* out) {
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t o = 0; o < kPanel; ++o) {
            memcpy(out + (i * kPanel + o) * kWord, rows[o] + i * kWord, kWord);
        }
    }
}

template <class T, bool kSigned, int kLanes>
LOWBIT_INLINE void pack_dy_as(const Plan& plan, const uint8_t* dy, int64_t panel, uint8_t* out) {
    constexpr int64_t kWhole = kWord / sizeof(T);  // integers in a word
    const lowbit_geometry& g = plan.g;
    const bool by_images = plan.lanes_are == Lanes::images;
    // Rows that end at a word boundary are contiguous and are packed as one.
    const bool one = by_images || (kLanes == 1 && plan.out_w % kWhole == 0);
    const int64_t lines = one ? 1 : plan.set_rows, length = one ? plan.out_h * plan.out_w : plan.out_w;
    constexpr int64_t kPixels = kPackWords * kWhole / kLanes;  // that are prepared at a time
    alignas(64) uint8_t words[kPanel][kPackWords * kWord];
    const uint8_t zeros[kPixels] = {};
    const uint8_t* rows[kPanel];
    for (int64_t o = 0; o < kPanel; ++o) rows[o] = words[o];
    const int64_t first = panel % plan.panels * kPanel;  // output within the group
    const int64_t output = panel / plan.panels * plan.group_outputs + first;
    for (int64_t set = 0; set < plan.sets; ++set) {
        int64_t filled = 0;  // words of each row
        for (int64_t line = 0; line < lines; ++line) {
            for (int64_t start = 0; start < length; start += kPixels) {
                const int64_t count = length - start < kPixels ? length - start : kPixels;
                const int64_t more = (count * kLanes + kWhole - 1) / kWhole;
                if (filled + more > kPackWords) {
                    interleave_outputs(rows, filled, out);
                    out += filled * kPanel * kWord;
                    filled = 0;
                }
                for (int64_t o = 0; o < kPanel; ++o) {
                    T* to = reinterpret_cast<T*>(words[o] + filled * kWord);
                    const uint8_t* from[kLanes];
                    for (int64_t lane = 0; lane < kLanes; ++lane) {
                        const int64_t n = by_images ? set * kLanes + lane : set;
                        const int64_t row = by_images ? 0 : line + lane * plan.set_rows;
                        const bool there = n < g.batch && row < plan.out_h && first + o < plan.group_outputs;
                        const int64_t at =
                            ((n * g.outputs + output + o) * plan.out_h + row) * plan.out_w + start;
                        from[lane] = there ? dy + at : zeros;
                    }
                    interleave<T, kSigned, kLanes>(to, from, count, 1, 0);
                    for (int64_t i = count * kLanes; i < more * kWhole; ++i) to[i] = 0;
                }
                filled += more;
            }
        }
        interleave_outputs(rows, filled, out);
        out += filled * kPanel * kWord;
    }
}

// Calls a function template with the plan's element type, sign and lanes.
#define LOWBIT_WITH_LAYOUT(FUNCTION, PLAN, IS_SIGNED, ...)  \
    if ((PLAN).lanes == 4) {                                \
        if ((PLAN).lanes_are != Lanes::pixels) {            \
            FUNCTION<uint8_t, false, 4>(PLAN, __VA_ARGS__); \
        } else {                                            \
            FUNCTION<uint8_t, false, 1>(PLAN, __VA_ARGS__); \
        }                                                   \
    } else if ((PLAN).lanes_are != Lanes::pixels) {         \
        if (IS_SIGNED) {                                    \
            FUNCTION<int16_t, true, 2>(PLAN, __VA_ARGS__);  \
        } else {                                            \
            FUNCTION<int16_t, false, 2>(PLAN, __VA_ARGS__); \
        }                                                   \
    } else if (IS_SIGNED) {                                 \
        FUNCTION<int16_t, true, 1>(PLAN, __VA_ARGS__);      \
    } else {                                                \
        FUNCTION<int16_t, false, 1>(PLAN, __VA_ARGS__);     \
    }

// One channel of x.
LOWBIT_INLINE void pack_x(const Plan& plan, const uint8_t* x, int64_t channel,
                          uint8_t* out){LOWBIT_WITH_LAYOUT(pack_x_as, plan, plan.x_signed, x, channel, out)}

// One panel of dy, counted over all groups.
LOWBIT_INLINE void pack_dy(const Plan& plan, const uint8_t* dy, int64_t panel,
                           uint8_t* out){LOWBIT_WITH_LAYOUT(pack_dy_as, plan, plan.dy_signed, dy, panel, out)}

// sums[n][o] over the pixels of dy, or sums[0][o] over all images.
LOWBIT_INLINE void sum_dy(const Plan& plan, const uint8_t* dy, int64_t* sums) {
    const int64_t plane = plan.out_h * plan.out_w;
    for (int64_t i = 0; i < (plan.by_sample ? plan.g.batch : 1) * plan.g.outputs; ++i) sums[i] = 0;
    for (int64_t i = 0; i < plan.g.batch * plan.g.outputs; ++i) {
        const uint8_t* from = dy + i * plane;
        int64_t total = 0;
        for (int64_t start = 0; start < plane; start += kBlock) {  // int32 holds the sum of a block
            const int64_t end = plane - start < kBlock ? plane : start + kBlock;
            int32_t part = 0;
            if (plan.dy_signed) {
                for (int64_t at = start; at < end; ++at) part += int8_t(from[at]);
            } else {
                for (int64_t at = start; at < end; ++at) part += from[at];
            }
            total += part;
        }
        sums[plan.by_sample ? i : i % plan.g.outputs] += total;
    }
}

// wide += narrow + shift; narrow = 0.
LOWBIT_INLINE void flush(int32_t* __restrict narrow, int64_t* __restrict wide, const int64_t* shift,
                         int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t o = 0; o < width; ++o) {
            wide[row * width + o] += narrow[row * width + o] + shift[o];
            narrow[row * width + o] = 0;
        }
    }
}

// values (+)= fp32(sums + shift) * (scale_dy * scale_x); sums = 0.
template <class T>
LOWBIT_INLINE void scale(T* __restrict sums, const int64_t* shift, const float* scale_dy,
                         const float* scale_x, float* __restrict values, bool add, int64_t channels,
                         int64_t taps, int64_t width) {
    T shifts[kMaxPanels * kPanel];
    float scales[kMaxPanels * kPanel];
    for (int64_t o = 0; o < width; ++o) shifts[o] = T(shift[o]);
    for (int64_t c = 0; c < channels; ++c) {
        for (int64_t o = 0; o < width; ++o) scales[o] = scale_dy[o] * scale_x[c];
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t row = (c * taps + tap) * width;
            for (int64_t o = 0; o < width; ++o) {
                const float value = float(T(sums[row + o] + shifts[o])) * scales[o];
                values[row + o] = add ? values[row + o] + value : value;
                sums[row + o] = 0;
            }
        }
    }
}

// to[o][row] = from[row][o]
template <class T>
LOWBIT_INLINE void transpose_store(const T* __restrict from, int64_t rows, int64_t width, T* __restrict to,
                                   int64_t to_output, int64_t outputs) {
    for (int64_t o = 0; o < outputs; ++o) {
        for (int64_t row = 0; row < rows; ++row) to[o * to_output + row] = from[row * width + o];
    }
}

namespace {

#define LOWBIT_PASSES(NAME, TARGET, PUT_VALUES)                                                            \
    namespace NAME {                                                                                       \
    TARGET void pack_x(const Plan& p, const uint8_t* x, int64_t channel, uint8_t* out) {                   \
        wgrad::pack_x(p, x, channel, out);                                                                 \
    }                                                                                                      \
    TARGET void pack_dy(const Plan& p, const uint8_t* dy, int64_t panel, uint8_t* out) {                   \
        wgrad::pack_dy(p, dy, panel, out);                                                                 \
    }                                                                                                      \
    TARGET void sum_dy(const Plan& p, const uint8_t* dy, int64_t* out) { wgrad::sum_dy(p, dy, out); }      \
    TARGET void flush(int32_t* narrow, int64_t* wide, const int64_t* shift, int64_t rows, int64_t width) { \
        wgrad::flush(narrow, wide, shift, rows, width);                                                    \
    }                                                                                                      \
    template <class T>                                                                                     \
    TARGET void scale(T* sums, const int64_t* shift, const float* scale_dy, const float* scale_x,          \
                      float* values, bool add, int64_t channels, int64_t taps, int64_t width) {            \
        wgrad::scale<T>(sums, shift, scale_dy, scale_x, values, add, channels, taps, width);               \
    }                                                                                                      \
    template <class T>                                                                                     \
    TARGET void transpose_store(const T* from, int64_t rows, int64_t width, T* to, int64_t to_output,      \
                                int64_t outputs) {                                                         \
        wgrad::transpose_store<T>(from, rows, width, to, to_output, outputs);                              \
    }                                                                                                      \
    const Passes loops = {pack_x,         pack_dy,        sum_dy,     flush,                               \
                          scale<int32_t>, scale<int64_t>, PUT_VALUES, transpose_store<int64_t>};           \
    }

#if LOWBIT_X86

// Transposes 8 x 8 values: pairs, then fours, then halves.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void transpose_store_8x8(const float* from, int64_t width, float* to,
                                                          int64_t to_output) {
    __m256 rows[8], pairs[8], fours[8];
    for (int i = 0; i < 8; ++i) rows[i] = _mm256_loadu_ps(from + i * width);
    for (int i = 0; i < 4; ++i) {
        pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * to_output, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_output, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
    }
}

LOWBIT_TARGET_AVX2 void transpose_store_by_8(const float* from, int64_t rows, int64_t width, float* to,
                                             int64_t to_output, int64_t outputs) {
    const int64_t whole_rows = rows / 8 * 8, whole_outputs = outputs / 8 * 8;
    for (int64_t o = 0; o < whole_outputs; o += 8) {
        for (int64_t row = 0; row < whole_rows; row += 8) {
            transpose_store_8x8(from + row * width + o, width, to + o * to_output + row, to_output);
        }
    }
    wgrad::transpose_store(from + whole_rows * width, rows - whole_rows, width, to + whole_rows, to_output,
                           whole_outputs);
    const int64_t left = outputs - whole_outputs;
    wgrad::transpose_store(from + whole_outputs, rows, width, to + whole_outputs * to_output, to_output,
                           left);
}

LOWBIT_PASSES(avx2, LOWBIT_TARGET_AVX2, transpose_store_by_8)

#endif
LOWBIT_PASSES(baseline, , transpose_store<float>)

}  // namespace

const Passes& passes_for(InstructionSet isa) {
#if LOWBIT_X86
    if (isa != InstructionSet::baseline) return avx2::loops;
#endif
    (void)isa;
    return baseline::loops;
}

}  // namespace lowbit::wgrad
