// Packing of the operands of a convolution; see packing.h. Blocks of 16 x 16 bytes are transposed in
// registers with SSE2, which every x86-64 processor has.
#include "gemm/packing.h"

#include "common/cpu.h"
#include "common/threads.h"

#include <cstring>

#if LOWBIT_X86
#include <emmintrin.h>
#endif

namespace lowbit::gemm {
namespace {

int16_t value_of(const Integers& integers, uint8_t byte) {
    return integers.is_signed ? static_cast<int8_t>(byte) : byte;
}

void put(const Integers& integers, uint8_t byte, int offset, uint8_t* target) {
    (void)integers;
    *target = static_cast<uint8_t>(byte + offset);
}

void put(const Integers& integers, uint8_t byte, int offset, int16_t* target) {
    *target = static_cast<int16_t>(value_of(integers, byte) + offset);
}

// One pixel with contiguous channels, as in a Linear layer.
template <class Element>
void pack_row(const Integers& integers, int64_t channels, int offset, Element* target) {
    int64_t c = 0;
    for (; c < channels; c++) put(integers, integers.first[c], offset, target + c);
    for (; c % 4; c++) target[c] = static_cast<Element>(offset);
}

#if LOWBIT_X86

// Four rounds of this shuffle transpose 16 x 16 bytes.
inline void transpose(__m128i (&rows)[16]) {
    __m128i other[16];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) {
            other[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
            other[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
        }
        for (int i = 0; i < 8; i++) {
            rows[2 * i] = _mm_unpacklo_epi8(other[i], other[i + 8]);
            rows[2 * i + 1] = _mm_unpackhi_epi8(other[i], other[i + 8]);
        }
    }
}

// Sixteen bytes, of which `count` are used. Near the end of the operand only these are read.
inline __m128i load(const uint8_t* from, int64_t count, const uint8_t* end) {
    if (end - from >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    uint8_t bytes[16] = {};
    memcpy(bytes, from, static_cast<size_t>(count));
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

inline void store(__m128i bytes, bool, uint8_t* target) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), bytes);
}

inline void store(__m128i bytes, bool is_signed, int16_t* target) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i high = is_signed ? _mm_cmpgt_epi8(zero, bytes) : zero;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm_unpacklo_epi8(bytes, high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 8), _mm_unpackhi_epi8(bytes, high));
}

inline void store_four(__m128i bytes, bool, uint8_t* target) {
    const int32_t four = _mm_cvtsi128_si32(bytes);
    memcpy(target, &four, 4);
}

inline void store_four(__m128i bytes, bool is_signed, int16_t* target) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i high = is_signed ? _mm_cmpgt_epi8(zero, bytes) : zero;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(target), _mm_unpacklo_epi8(bytes, high));
}

// The offset of bytes is added modulo 256; int16 has none.
template <class Element>
void pack(const Integers& integers, int64_t channels, int64_t plane_stride, int64_t pixels,
          const int64_t* target_offsets, int offset, Element* target) {
    const __m128i added = _mm_set1_epi8(static_cast<char>(offset));
    for (int64_t p = 0; p < pixels; p += 16) {
        const int64_t count = pixels - p < 16 ? pixels - p : 16;
        const uint8_t* from = integers.first + p;
        int64_t c = 0;
        for (; c + 16 <= channels; c += 16) {
            __m128i rows[16];
            for (int i = 0; i < 16; i++) {
                rows[i] = _mm_add_epi8(load(from + (c + i) * plane_stride, count, integers.end), added);
            }
            transpose(rows);
            for (int64_t i = 0; i < count; i++) {
                store(rows[i], integers.is_signed, target + target_offsets[p + i] + c);
            }
        }
        for (; c < channels; c += 4) {
            __m128i rows[4] = {added, added, added, added};
            for (int64_t i = 0; i < 4 && c + i < channels; i++) {
                rows[i] = _mm_add_epi8(load(from + (c + i) * plane_stride, count, integers.end), added);
            }
            const __m128i even_low = _mm_unpacklo_epi8(rows[0], rows[1]);
            const __m128i even_high = _mm_unpackhi_epi8(rows[0], rows[1]);
            const __m128i odd_low = _mm_unpacklo_epi8(rows[2], rows[3]);
            const __m128i odd_high = _mm_unpackhi_epi8(rows[2], rows[3]);
            __m128i fours[4] = {_mm_unpacklo_epi16(even_low, odd_low), _mm_unpackhi_epi16(even_low, odd_low),
                                _mm_unpacklo_epi16(even_high, odd_high),
                                _mm_unpackhi_epi16(even_high, odd_high)};
            for (int64_t i = 0; i < count; i++) {
                store_four(fours[i / 4], integers.is_signed, target + target_offsets[p + i] + c);
                fours[i / 4] = _mm_srli_si128(fours[i / 4], 4);
            }
        }
    }
}

#else

template <class Element>
void pack(const Integers& integers, int64_t channels, int64_t plane_stride, int64_t pixels,
          const int64_t* target_offsets, int offset, Element* target) {
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t p = 0; p < pixels; p++) {
            put(integers, integers.first[c * plane_stride + p], offset, target + target_offsets[p] + c);
        }
    }
    for (int64_t c = channels; c % 4; c++) {
        for (int64_t p = 0; p < pixels; p++) target[target_offsets[p] + c] = static_cast<Element>(offset);
    }
}

#endif

template <class Element>
void pack_as(const Integers& integers, int64_t channels, int64_t plane_stride, int64_t pixels,
             const int64_t* target_offsets, int offset, Element* target) {
    if (pixels == 1 && plane_stride == 1) {
        return pack_row(integers, channels, offset, target + target_offsets[0]);
    }
    pack(integers, channels, plane_stride, pixels, target_offsets, offset, target);
}

}  // namespace

void pack_planes(Integers integers, int64_t channels, int64_t plane_stride, int64_t pixels,
                 const int64_t* target_offsets, int offset, ElementType packed, void* target) {
    if (packed == ElementType::int8) {
        pack_as(integers, channels, plane_stride, pixels, target_offsets, offset,
                static_cast<uint8_t*>(target));
    } else {
        pack_as(integers, channels, plane_stride, pixels, target_offsets, offset,
                static_cast<int16_t*>(target));
    }
}

int64_t sum_of_bytes(const uint8_t* bytes, int64_t count) {
    int64_t sum = 0, i = 0;
#if LOWBIT_X86
    // vpsadbw adds unsigned bytes: flipping the sign bit adds 128 to each.
    const __m128i sign = _mm_set1_epi8(static_cast<char>(0x80));
    __m128i sums = _mm_setzero_si128();
    for (; i + 16 <= count; i += 16) {
        const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
        sums = _mm_add_epi64(sums, _mm_sad_epu8(_mm_xor_si128(values, sign), _mm_setzero_si128()));
    }
    sum = _mm_cvtsi128_si64(sums) + _mm_cvtsi128_si64(_mm_unpackhi_epi64(sums, sums)) - 128 * i;
#endif
    for (; i < count; i++) sum += static_cast<int8_t>(bytes[i]);
    return sum;
}

void interleave_rows(const uint32_t* rows, int64_t count, uint32_t* target) {
    int64_t i = 0;
#if LOWBIT_X86
    for (; i + 4 <= count; i += 4) {
        for (int64_t r = 0; r < 16; r += 4) {
            __m128i four[4];
            for (int j = 0; j < 4; j++) {
                four[j] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + (r + j) * count + i));
            }
            const __m128i a = _mm_unpacklo_epi32(four[0], four[1]), b = _mm_unpackhi_epi32(four[0], four[1]);
            const __m128i c = _mm_unpacklo_epi32(four[2], four[3]), d = _mm_unpackhi_epi32(four[2], four[3]);
            __m128i* to = reinterpret_cast<__m128i*>(target + i * 16 + r);
            _mm_storeu_si128(to, _mm_unpacklo_epi64(a, c));
            _mm_storeu_si128(to + 4, _mm_unpackhi_epi64(a, c));
            _mm_storeu_si128(to + 8, _mm_unpacklo_epi64(b, d));
            _mm_storeu_si128(to + 12, _mm_unpackhi_epi64(b, d));
        }
    }
#endif
    for (; i < count; i++) {
        for (int64_t r = 0; r < 16; r++) target[i * 16 + r] = rows[r * count + i];
    }
}

PackedWeights::PackedWeights(const Convolution& convolution, const PackedLayout& layout,
                             const lowbit_operand& weight, bool transposed)
    : convolution_(convolution), layout_(layout), weight_(weight), transposed_(transposed) {
    thread_local Scratch panels, corrections;
    const int64_t taps = convolution.kernel_taps;
    panels_ = panels.get<uint8_t>(layout.panels * layout.panel_bytes);
    corrections_ = corrections.get<int64_t>(taps * layout.panels * kPanel);
    target_offsets_.resize(static_cast<size_t>(kPanel * taps));
    int64_t slot = 0;
    for (const Phase& phase : convolution.phases) {
        for (const Tap& tap : phase.taps) {
            for (int64_t row = 0; row < kPanel; row++) {
                target_offsets_[row * taps + tap.index] = (row * taps + slot) * layout.channels;
            }
            slot++;
        }
    }
}

void PackedWeights::pack(int64_t group, bool in_parallel) {
    const int64_t size =
        convolution_.source.channels * convolution_.result.channels * convolution_.kernel_taps;
    const uint8_t* first = static_cast<const uint8_t*>(weight_.integers) + group * size;
    const uint8_t* end = first + (convolution_.groups - group) * size;
    for_each(in_parallel, layout_.panels, [&](int64_t panel) { pack_panel(first, end, panel); });
}

void PackedWeights::pack_panel(const uint8_t* first, const uint8_t* end, int64_t panel) {
    thread_local Scratch scratch;
    const int64_t taps = convolution_.kernel_taps, size = element_size(layout_.packed),
                  row = taps * layout_.channels * size;
    const int64_t in = convolution_.source.channels, out = convolution_.result.channels;
    const int64_t c = panel * kPanel, count = std::min(kPanel, out - c);
    const bool is_signed = weight_.lowest < 0;
    uint8_t* rows = scratch.get<uint8_t>(kPanel * row);
    memset(rows + count * row, 0, static_cast<size_t>((kPanel - count) * row));
    if (transposed_) {
        pack_planes({first + c * taps, end, is_signed}, in, out * taps, count * taps, target_offsets_.data(),
                    0, layout_.packed, rows);
    } else {
        for (int64_t i = 0; i < count; i++) {
            pack_planes({first + (c + i) * in * taps, end, is_signed}, in, taps, taps, target_offsets_.data(),
                        0, layout_.packed, rows + i * row);
        }
    }
    interleave_rows(reinterpret_cast<const uint32_t*>(rows), row / 4,
                    reinterpret_cast<uint32_t*>(panels_ + panel * layout_.panel_bytes));
    for (int64_t i = 0; i < kPanel * taps; i++) {
        // Without an offset (int16 never has one) there is nothing to correct.
        const int64_t sum = layout_.offset ? sum_of_bytes(rows + i * layout_.channels, layout_.channels) : 0;
        corrections_[(i % taps * layout_.panels + panel) * kPanel + i / taps] = -layout_.offset * sum;
    }
}

constexpr int64_t kPackedBytesPerThread =
    256 * 1024;                     // so that packed images are still in the L2 cache when they are read
constexpr int64_t kMinPixels = 48;  // of images that are packed together: several strips
constexpr int64_t kMinMultiplications = 1 << 18;  // fewer are not worth another thread

ImageSplit::ImageSplit(const Convolution& convolution, const PackedLayout& layout) {
    const Image &source = convolution.source, &result = convolution.result;
    const int64_t batch = convolution.batch, pixels = std::max<int64_t>(1, result.height * result.width);
    const int64_t work = batch * pixels * result.channels * source.channels * convolution.kernel_taps;
    in_parallel = lowbit_threads() > 1 && work >= kMinMultiplications;
    const int64_t threads = in_parallel ? lowbit_threads() : 1;
    const auto fitting = [&](int64_t bytes) { return std::max<int64_t>(1, bytes / layout.image_bytes); };
    const int64_t fair = std::max<int64_t>(1, batch / (threads * kItemsPerThread));
    const int64_t wanted = threads == 1 ? batch : std::max(fair, round_up(kMinPixels, pixels) / pixels);
    images = std::min(fitting(kPackedBytesPerThread), wanted);
    by_images = threads == 1 || images * (threads - 1) < batch;
    if (!by_images) images = fitting(threads * kPackedBytesPerThread);
    const int64_t rounds = round_up(batch, images) / images;
    images = round_up(batch, rounds) / rounds;
}

PackedImages::PackedImages(const Convolution& convolution, const PackedLayout& layout, const Product& product,
                           int64_t max_images)
    : convolution_(convolution), layout_(layout), product_(product), max_images_(max_images) {
    thread_local Scratch pixels;
    const Image& source = convolution.source;
    pixels_ = pixels.get<int64_t>(source.height * source.width);
    for (int64_t row = 0; row < source.height; row++) {
        for (int64_t column = 0; column < source.width; column++) {
            pixels_[row * source.width + column] = pixel_index(row, column) * layout.channels;
        }
    }
}

PackedBatch PackedImages::room() const {
    thread_local Scratch bytes, scales;
    // A micro-kernel that starts at the last pixel reads up to kSlack pixels further.
    int64_t behind = 0;
    for (const Phase& phase : convolution_.phases) {
        behind = std::max(behind, kSlack * layout_.pixel_stride(phase));
    }
    return {bytes.get<uint8_t>(max_images_ * layout_.image_bytes + behind),
            product_.sum_taps_in_fp32 ? scales.get<float>(max_images_ * padded_pixels()) : nullptr};
}

void PackedImages::pack(const PackedBatch& batch, int64_t group, int64_t n, int64_t slot) const {
    const Image& source = convolution_.source;
    const int64_t plane = source.height * source.width, image = source.channels * plane;
    const uint8_t* all = static_cast<const uint8_t*>(product_.source->integers);
    const uint8_t* end = all + convolution_.batch * convolution_.groups * image;
    const Integers integers{all + (n * convolution_.groups + group) * image, end,
                            product_.source->lowest < 0};
    uint8_t* target = batch.bytes + slot * layout_.image_bytes;
    pad(target);
    pack_planes(integers, source.channels, plane, plane, pixels_, layout_.offset, layout_.packed, target);
    if (batch.scales) expand_scales(n, batch.scales + slot * padded_pixels());
}

// Writes what is around the pixels; of int16, the offset is 0.
void PackedImages::pad(uint8_t* image) const {
    const auto fill = [&](int64_t first, int64_t pixels) {
        memset(image + first * layout_.pixel_bytes, layout_.offset,
               static_cast<size_t>(pixels * layout_.pixel_bytes));
    };
    const int64_t height = convolution_.source.height, width = convolution_.source.width;
    int64_t done = 0;  // pixels that are written or between
    for (int64_t row = 0; row < height; row++) {
        const int64_t first = pixel_index(row, 0);
        fill(done, first - done);
        done = first + width;
    }
    fill(done, padded_pixels() - done);
}

void PackedImages::expand_scales(int64_t n, float* scales) const {
    const Image& source = convolution_.source;
    const lowbit_operand& from = *product_.source;
    memset(scales, 0, static_cast<size_t>(padded_pixels()) * sizeof(float));
    for (int64_t row = 0; row < source.height; row++) {
        for (int64_t column = 0; column < source.width; column++) {
            scales[pixel_index(row, column)] =
                from.scale[n * from.of_n + (row * source.width + column) * from.of_pixel];
        }
    }
}

}  // namespace lowbit::gemm
