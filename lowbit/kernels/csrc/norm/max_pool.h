// Max-pool of a plane: along every row first, then down the rows, so that both passes read consecutive
// memory. The first of equal values wins in both passes, and therefore in the window.
#pragma once
#include "norm/norm.h"

#include <cstring>

namespace lowbit::norm {

typedef int32_t Ints __attribute__((vector_size(4 * sizeof(int32_t))));

// The largest value so far and its index. NaN wins and stays.
struct Largest {
    float value;
    int32_t place;

    LOWBIT_INLINE void take(float other, int32_t at) {
        const bool takes = !(value >= other) && value == value;
        value = takes ? other : value;
        place = takes ? at : place;
    }
};

// The same for four windows.
struct FourLargest {
    Floats values;
    Ints places;

    LOWBIT_INLINE void take(Floats others, Ints at) {
        const Ints takes = ~(values >= others) & (values == values);
        values = takes ? others : values;
        places = takes ? at : places;
    }

    LOWBIT_INLINE void store(float* to, int32_t* at) const {
        std::memcpy(to, &values, sizeof values);
        std::memcpy(at, &places, sizeof places);
    }
};

// Four values, kStride elements apart; with stride 2, eight are read.
template <int kStride>
LOWBIT_INLINE Floats four_of(const float* x) {
    Floats first, second;
    std::memcpy(&first, x, sizeof first);
    if (kStride == 1) return first;
    std::memcpy(&second, x + 4, sizeof second);
    return Floats{first[0], first[2], second[0], second[2]};
}

LOWBIT_INLINE Ints four_of(const int32_t* x) {
    Ints four;
    std::memcpy(&four, x, sizeof four);
    return four;
}

// The largest value of every window in one row, and its column in the window.
template <int kKernel, int kStride>
LOWBIT_INLINE void along_row(const float* x, const lowbit_pool& of, float* best, int32_t* at) {
    int64_t o = 0;
    const auto alone = [&]() LOWBIT_INLINE_LAMBDA {
        const int64_t start = o * kStride - of.left;
        const int32_t skipped = start < 0 ? int32_t(-start) : 0;
        Largest largest = {x[start + skipped], skipped};
        for (int k = skipped + 1; k < kKernel && start + k < of.width; ++k) largest.take(x[start + k], k);
        best[o] = largest.value, at[o] = largest.place;
    };
    const auto inside = [&](int64_t place) LOWBIT_INLINE_LAMBDA { return place >= 0 && place < of.width; };
    for (; o < of.out_width && !inside(o * kStride - of.left); ++o) alone();
    constexpr int kReach =
        kKernel - 1 + 4 * kStride - 1;  // elements that four windows read, from the beginning of the first
    for (; o + 4 <= of.out_width && inside(o * kStride - of.left + kReach); o += 4) {
        const float* from = x + o * kStride - of.left;
        FourLargest largest = {four_of<kStride>(from), Ints{}};
        for (int k = 1; k < kKernel; ++k) largest.take(four_of<kStride>(from + k), Ints{} + k);
        largest.store(best + o, at + o);
    }
    for (; o < of.out_width; ++o) alone();
}

// The largest over up to three such rows; `before` is the index in the window of the first column of a row.
LOWBIT_INLINE void down_rows(const float* const* best, const int32_t* const* at, const int32_t* before,
                             int rows, int64_t wide, float* y, uint8_t* places) {
    int64_t i = 0;
    for (; i + 4 <= wide; i += 4) {
        FourLargest largest = {four_of<1>(best[0] + i), four_of(at[0] + i) + before[0]};
        for (int k = 1; k < rows; ++k) largest.take(four_of<1>(best[k] + i), four_of(at[k] + i) + before[k]);
        std::memcpy(y + i, &largest.values, sizeof largest.values);
        for (int lane = 0; lane < 4; ++lane) places[i + lane] = uint8_t(largest.places[lane]);
    }
    for (; i < wide; ++i) {
        Largest largest = {best[0][i], at[0][i] + before[0]};
        for (int k = 1; k < rows; ++k) largest.take(best[k][i], at[k][i] + before[k]);
        y[i] = largest.value, places[i] = uint8_t(largest.place);
    }
}

template <int kKernel, int kStride>
LOWBIT_INLINE void pool_plane(const float* x, float* y, uint8_t* places, const lowbit_pool& of, float* best,
                              int32_t* at) {
    const int64_t wide = of.out_width;
    for (int64_t row = 0; row < of.height; ++row) {
        along_row<kKernel, kStride>(x + row * of.width, of, best + row * wide, at + row * wide);
    }
    for (int64_t o = 0; o < of.out_height; ++o) {
        const float* values[3];
        const int32_t* columns[3];
        int32_t before[3];
        int rows = 0;
        for (int64_t k = 0; k < of.kernel_h; ++k) {
            const int64_t row = o * of.stride_h - of.top + k;
            if (row < 0 || row >= of.height) continue;
            values[rows] = best + row * wide, columns[rows] = at + row * wide;
            before[rows++] = int32_t(k * kKernel);
        }
        down_rows(values, columns, before, rows, wide, y + o * wide, places + o * wide);
    }
}

// `best` and `at` hold out_width elements for every row of the plane.
LOWBIT_INLINE void max_pool_forward(const float* x, float* y, uint8_t* places, const lowbit_pool& of,
                                    float* best, int32_t* at) {
    if (of.kernel_w == 2 && of.stride_w == 1) {
        pool_plane<2, 1>(x, y, places, of, best, at);
    } else if (of.kernel_w == 2) {
        pool_plane<2, 2>(x, y, places, of, best, at);
    } else if (of.stride_w == 1) {
        pool_plane<3, 1>(x, y, places, of, best, at);
    } else {
        pool_plane<3, 2>(x, y, places, of, best, at);
    }
}

LOWBIT_INLINE void max_pool_backward(const float* dy, const uint8_t* places, float* dx,
                                     const lowbit_pool& of) {
    int64_t offsets[9];
    for (int64_t place = 0; place < of.kernel_h * of.kernel_w; ++place) {
        offsets[place] = (place / of.kernel_w - of.top) * of.width + place % of.kernel_w - of.left;
    }
    std::memset(dx, 0, size_t(of.height * of.width) * sizeof(float));
    for (int64_t o = 0; o < of.out_height; ++o) {
        float* row = dx + o * of.stride_h * of.width;
        for (int64_t i = 0; i < of.out_width; ++i) row[i * of.stride_w + offsets[places[i]]] += dy[i];
        dy += of.out_width;
        places += of.out_width;
    }
}

}  // namespace lowbit::norm
