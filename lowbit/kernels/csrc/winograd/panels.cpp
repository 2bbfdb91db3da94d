// Loads the pixels of a panel of sixteen channels: bytes in NCHW to int16 with channels innermost.
#include "common/scratch.h"
#include "winograd/transforms.h"

#include <algorithm>
#include <cstring>
#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::winograd {
namespace {

// Rows of pixels in up to sixteen planes, and where they go: the channels of a pixel together.
struct PlaneRows {
    const uint8_t* first;
    int64_t plane, channels;
    int64_t pixels, width;  // of all rows, and of one
    int16_t* to;
    int64_t row;         // elements from one row to the next
    const uint8_t* end;  // of the whole tensor: reads must stay before it
    int64_t ahead;       // bytes from a pixel to one that will be loaded soon; 0 if there is none
};

constexpr int64_t kLine = 64;             // bytes of a cache line
constexpr int64_t kBytesAhead = 1 << 12;  // at least: what is loaded while a line comes from memory

template <bool kSigned>
void spread_baseline(const PlaneRows& of) {
    for (int64_t p = 0; p < of.pixels; p++) {
        int16_t* to = of.to + p / of.width * of.row + p % of.width * kPanel;
        for (int64_t c = 0; c < of.channels; c++) {
            const uint8_t byte = of.first[c * of.plane + p];
            to[c] = kSigned ? static_cast<int8_t>(byte) : byte;
        }
    }
}

#if LOWBIT_X86

// Sixteen pixels of channels c and c + 8. Near the end of the tensor only `count` of them are read.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i load_two(const PlaneRows& of, int64_t p, int64_t c, int64_t count) {
    __m128i halves[2];
    for (int half = 0; half < 2; half++, c += kPanel / 2) {
        const uint8_t* from = of.first + c * of.plane + p;
        if (c >= of.channels) {
            halves[half] = _mm_setzero_si128();
        } else if (of.end - from >= kPanel) {
            halves[half] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        } else {
            uint8_t bytes[kPanel] = {};
            memcpy(bytes, from, static_cast<size_t>(count));
            halves[half] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
        }
    }
    return _mm256_inserti128_si256(_mm256_castsi128_si256(halves[0]), halves[1], 1);
}

// Sixteen planes are more streams than processors recognize, so that loads would wait for memory.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void prefetch_line(const PlaneRows& of, int64_t p) {
    for (int64_t c = 0; c < of.channels; c++) {
        _mm_prefetch(reinterpret_cast<const char*>(of.first + c * of.plane + p + of.ahead), _MM_HINT_T1);
    }
}

template <bool kSigned>
LOWBIT_TARGET_AVX2 void spread_avx2(const PlaneRows& of) {
    constexpr int kHalf = kPanel / 2;
    int16_t* to = of.to;
    int64_t column = 0;
    for (int64_t p = 0; p < of.pixels; p += kPanel) {
        const int64_t count = std::min(kPanel, of.pixels - p);
        if (of.ahead && p % kLine == 0) prefetch_line(of, p);
        __m256i rows[kHalf], other[kHalf];
        LOWBIT_UNROLLED
        for (int c = 0; c < kHalf; c++) rows[c] = load_two(of, p, c, count);
        // Three rounds of this shuffle put the eight channels of a half next to each other, two pixels each.
        LOWBIT_UNROLLED
        for (int round = 0; round < 3; round++) {
            LOWBIT_UNROLLED
            for (int i = 0; i < kHalf / 2; i++) {
                other[2 * i] = _mm256_unpacklo_epi8(rows[i], rows[i + kHalf / 2]);
                other[2 * i + 1] = _mm256_unpackhi_epi8(rows[i], rows[i + kHalf / 2]);
            }
            LOWBIT_UNROLLED
            for (int i = 0; i < kHalf; i++) rows[i] = other[i];
        }
        __m256i pixels[kPanel];
        LOWBIT_UNROLLED
        for (int i = 0; i < kHalf; i++) {
            const __m256i zero = _mm256_setzero_si256();
            const __m256i high = kSigned ? _mm256_cmpgt_epi8(zero, rows[i]) : zero;
            pixels[2 * i] = _mm256_unpacklo_epi8(rows[i], high);
            pixels[2 * i + 1] = _mm256_unpackhi_epi8(rows[i], high);
        }
        LOWBIT_UNROLLED
        for (int i = 0; i < kPanel; i++) {
            if (i == count) break;
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), pixels[i]);
            to += kPanel;
            if (++column == of.width) to += of.row - of.width * kPanel, column = 0;
        }
    }
}

#endif

void spread(const PlaneRows& of, bool is_signed) {
#if LOWBIT_X86
    if (instruction_set() != InstructionSet::baseline) {
        return is_signed ? spread_avx2<true>(of) : spread_avx2<false>(of);
    }
#endif
    is_signed ? spread_baseline<true>(of) : spread_baseline<false>(of);
}

}  // namespace

PanelPixels load_panel(const Bytes& of, const Tiling& tiling, int64_t image, int64_t panel, int64_t first,
                       int64_t rows) {
    thread_local Scratch scratch;
    const int64_t more = of.reach - kTile, height = kTile * rows + more;
    const int64_t columns = kTile * tiling.columns + more, row = columns * kPanel;
    int16_t* pixels = scratch.get<int16_t>(height * row);
    const int64_t c = panel * kPanel, channels = std::min(kPanel, of.channels - c);
    // The rows [top, bottom) and columns [left, right) are inside the image.
    const int64_t above = kTile * first - of.pad_top, left = of.pad_left;
    const int64_t top = std::clamp<int64_t>(-above, 0, height);
    const int64_t bottom = std::clamp(of.height - above, top, height);
    const int64_t right = std::min(columns, left + of.width);
    const auto clear = [](int16_t* from, int16_t* to) {
        memset(from, 0, static_cast<size_t>(to - from) * sizeof(int16_t));
    };
    if (channels < kPanel) clear(pixels, pixels + height * row);
    clear(pixels, pixels + top * row);
    clear(pixels + bottom * row, pixels + height * row);
    for (int64_t i = top; i < bottom; i++) {
        clear(pixels + i * row, pixels + i * row + left * kPanel);
        clear(pixels + i * row + right * kPanel, pixels + (i + 1) * row);
    }
    const int64_t plane = of.height * of.width;
    const uint8_t* end = of.first + of.images * of.channels * plane;
    const uint8_t* from = of.first + (image * of.channels + c) * plane + (above + top) * of.width;
    int16_t* to = pixels + top * row + left * kPanel;
    const int64_t images = ceil_div(kBytesAhead, kPanel * plane);
    const int64_t ahead = image + images < of.images ? images * of.channels * plane : 0;
    const auto load = [&](int64_t i, int64_t count) {
        spread({from + i * of.width, plane, channels, count, of.width, to + i * row, row, end, ahead},
               of.is_signed);
    };
    if (right - left == of.width) {
        load(0, (bottom - top) * of.width);
    } else {
        for (int64_t i = 0; i < bottom - top; i++) load(i, right - left);
    }
    return {pixels, columns, rows, tiling.columns};
}

}  // namespace lowbit::winograd
