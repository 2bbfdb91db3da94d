// Packing by transposing 16 x 16 bytes in registers (SSE2, which every x86-64 has), or byte by byte elsewhere.
#include "packing.h"

#include "instruction_set.h"

#include <cstring>

#if LOWBIT_X86
#include <emmintrin.h>
#endif

namespace lowbit::conv {
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

// One pixel whose channels lie side by side, as in a Linear layer.
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

// Sixteen bytes, of which `count` are wanted: the rest are whatever lies there, or nothing behind the operand.
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

// Words are packed without an offset, bytes with one that turns over as it should.
template <class Element>
void pack(const Integers& integers, int64_t channels, int64_t apart, int64_t pixels, const int64_t* places,
          int offset, Element* target) {
    const __m128i added = _mm_set1_epi8(static_cast<char>(offset));
    for (int64_t p = 0; p < pixels; p += 16) {
        const int64_t count = pixels - p < 16 ? pixels - p : 16;
        const uint8_t* from = integers.first + p;
        int64_t c = 0;
        for (; c + 16 <= channels; c += 16) {
            __m128i rows[16];
            for (int i = 0; i < 16; i++) {
                rows[i] = _mm_add_epi8(load(from + (c + i) * apart, count, integers.end), added);
            }
            transpose(rows);
            for (int64_t i = 0; i < count; i++) store(rows[i], integers.is_signed, target + places[p + i] + c);
        }
        for (; c < channels; c += 4) {
            __m128i rows[4] = {added, added, added, added};
            for (int64_t i = 0; i < 4 && c + i < channels; i++) {
                rows[i] = _mm_add_epi8(load(from + (c + i) * apart, count, integers.end), added);
            }
            const __m128i even_low = _mm_unpacklo_epi8(rows[0], rows[1]);
            const __m128i even_high = _mm_unpackhi_epi8(rows[0], rows[1]);
            const __m128i odd_low = _mm_unpacklo_epi8(rows[2], rows[3]);
            const __m128i odd_high = _mm_unpackhi_epi8(rows[2], rows[3]);
            __m128i fours[4] = {_mm_unpacklo_epi16(even_low, odd_low), _mm_unpackhi_epi16(even_low, odd_low),
                                _mm_unpacklo_epi16(even_high, odd_high), _mm_unpackhi_epi16(even_high, odd_high)};
            for (int64_t i = 0; i < count; i++) {
                store_four(fours[i / 4], integers.is_signed, target + places[p + i] + c);
                fours[i / 4] = _mm_srli_si128(fours[i / 4], 4);
            }
        }
    }
}

#else

template <class Element>
void pack(const Integers& integers, int64_t channels, int64_t apart, int64_t pixels, const int64_t* places,
          int offset, Element* target) {
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t p = 0; p < pixels; p++) {
            put(integers, integers.first[c * apart + p], offset, target + places[p] + c);
        }
    }
    for (int64_t c = channels; c % 4; c++) {
        for (int64_t p = 0; p < pixels; p++) target[places[p] + c] = static_cast<Element>(offset);
    }
}

#endif

template <class Element>
void pack_as(const Integers& integers, int64_t channels, int64_t apart, int64_t pixels, const int64_t* places,
             int offset, Element* target) {
    if (pixels == 1 && apart == 1) return pack_row(integers, channels, offset, target + places[0]);
    pack(integers, channels, apart, pixels, places, offset, target);
}

}  // namespace

void pack_planes(Integers integers, int64_t channels, int64_t apart, int64_t pixels, const int64_t* places,
                 int offset, Packed packed, void* target) {
    if (packed == Packed::bytes) {
        pack_as(integers, channels, apart, pixels, places, offset, static_cast<uint8_t*>(target));
    } else {
        pack_as(integers, channels, apart, pixels, places, offset, static_cast<int16_t*>(target));
    }
}

int64_t sum_of_bytes(const uint8_t* bytes, int64_t count) {
    int64_t sum = 0, i = 0;
#if LOWBIT_X86
    // The instruction adds unsigned bytes up: the sign bit turned over makes them so, by adding 128.
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

}  // namespace lowbit::conv
