// Tables of 256 bytes by shuffles of 16. See byte_table.h.
//
// vpshufb looks up 16 entries by the lower half of a byte and gives 0 where the byte's sign bit is set. With
// D[k] = T[k] xor T[k - 1] for the sixteenths T of a table, the entry of a byte below 128 is the xor of D[0]
// to D[byte / 16]: so 16 is subtracted again and again, and a byte drops out once it is negative. Bytes from
// 128 on are looked up likewise, in the other half of the table.
#include "runtime/byte_table.h"

#include "common/cpu.h"

#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::runtime {

ByteTable::ByteTable(const uint8_t* values) {
    memcpy(values_, values, sizeof values_);
    prepare();
}

ByteTable::ByteTable(const Grid& from, const Grid& to) {
    for (int i = 0; i < 256; i++) {
        values_[i] = quantize_one(dequantize_one(static_cast<uint8_t>(i), from), to);
    }
    prepare();
}

void ByteTable::prepare() {
    is_identity_ = true;
    for (int i = 0; i < 256; i++) {
        is_identity_ = is_identity_ && values_[i] == i;
        const int before = i % 128 < 16 ? 0 : values_[i - 16];
        differences_[i / 16][i % 16] = static_cast<uint8_t>(values_[i] ^ before);
    }
}

#if LOWBIT_X86
namespace {

using Differences = const uint8_t (*)[16];

// Of two registers.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void look_up(Differences differences, __m256i (&bytes)[2]) {
    const __m256i sixteen = _mm256_set1_epi8(16), sign = _mm256_set1_epi8(static_cast<char>(0x80));
    __m256i found[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int half = 0; half < 2; half++) {
        __m256i left[2];
        for (int i = 0; i < 2; i++) left[i] = half ? _mm256_xor_si256(bytes[i], sign) : bytes[i];
        for (int k = 0; k < 8; k++) {
            const __m128i* entries = reinterpret_cast<const __m128i*>(differences[8 * half + k]);
            const __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128(entries));
            for (int i = 0; i < 2; i++) {
                found[i] = _mm256_xor_si256(found[i], _mm256_shuffle_epi8(table, left[i]));
                left[i] = _mm256_subs_epi8(left[i], sixteen);
            }
        }
    }
    bytes[0] = found[0], bytes[1] = found[1];
}

// A multiple of 64 bytes.
LOWBIT_TARGET_AVX2 void apply_avx2(Differences differences, const uint8_t* from, int64_t count, uint8_t* to) {
    for (int64_t i = 0; i < count; i += 64) {
        const __m256i* x = reinterpret_cast<const __m256i*>(from + i);
        __m256i* y = reinterpret_cast<__m256i*>(to + i);
        __m256i bytes[2] = {_mm256_loadu_si256(x), _mm256_loadu_si256(x + 1)};
        look_up(differences, bytes);
        _mm256_storeu_si256(y, bytes[0]);
        _mm256_storeu_si256(y + 1, bytes[1]);
    }
}

// A multiple of four offsets.
LOWBIT_TARGET_AVX2 void apply_at_avx2(Differences differences, const int64_t* offsets, int64_t count,
                                      uint8_t* all) {
    for (int64_t i = 0; i < count; i += 4) {
        __m128i* at[4];
        for (int j = 0; j < 4; j++) at[j] = reinterpret_cast<__m128i*>(all + offsets[i + j]);
        __m256i bytes[2];
        for (int j = 0; j < 2; j++) {
            bytes[j] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(at[2 * j])),
                                               _mm_loadu_si128(at[2 * j + 1]), 1);
        }
        look_up(differences, bytes);
        for (int j = 0; j < 2; j++) {
            _mm_storeu_si128(at[2 * j], _mm256_castsi256_si128(bytes[j]));
            _mm_storeu_si128(at[2 * j + 1], _mm256_extracti128_si256(bytes[j], 1));
        }
    }
}

}  // namespace
#endif

void ByteTable::apply(const uint8_t* from, int64_t count, uint8_t* to) const {
    int64_t done = 0;
#if LOWBIT_X86
    if (instruction_set() != InstructionSet::baseline) {
        done = count / 64 * 64;
        apply_avx2(differences_, from, done, to);
    }
#endif
    for (int64_t i = done; i < count; i++) to[i] = values_[from[i]];
}

void ByteTable::apply_at(const int64_t* offsets, int64_t count, uint8_t* bytes) const {
    int64_t done = 0;
#if LOWBIT_X86
    if (instruction_set() != InstructionSet::baseline) {
        done = count / 4 * 4;
        apply_at_avx2(differences_, offsets, done, bytes);
    }
#endif
    for (int64_t i = done; i < count; i++) {
        for (int64_t c = 0; c < 16; c++) bytes[offsets[i] + c] = values_[bytes[offsets[i] + c]];
    }
}

}  // namespace lowbit::runtime
