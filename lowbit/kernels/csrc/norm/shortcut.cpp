// The shortcut of ResNets without parameters: every stride-th pixel, between channels of zeros; see norm.h.
#include <cstring>

#include "common/cpu.h"
#include "common/grouped_axes.h"
#include "norm/norm.h"

namespace {

// With a constant stride compilers take the pixels apart in registers.
template <int64_t kStride>
LOWBIT_INLINE void thin_rows(const float* x, float* y, const lowbit_shortcut& of) {
    const int64_t stride = kStride ? kStride : of.stride;
    const int64_t rows = (of.height + stride - 1) / stride, columns = (of.width + stride - 1) / stride;
    for (int64_t row = 0; row < rows; ++row) {
        const float* from = x + row * stride * of.width;
        for (int64_t i = 0; i < columns; ++i) y[row * columns + i] = from[i * stride];
    }
}

template <int64_t kStride>
LOWBIT_INLINE void spread_rows(const float* dy, float* dx, const lowbit_shortcut& of) {
    const int64_t stride = kStride ? kStride : of.stride;
    const int64_t columns = (of.width + stride - 1) / stride;
    for (int64_t row = 0; row < of.height; ++row) {
        float* to = dx + row * of.width;
        if (row % stride) {
            std::memset(to, 0, size_t(of.width) * sizeof(float));
            continue;
        }
        const float* from = dy + row / stride * columns;
        for (int64_t i = 0; i < of.width; ++i) to[i] = i % stride ? 0.0f : from[i / stride];
    }
}

struct Loops {
    void (*thin)(const float* x, float* y, const lowbit_shortcut& of);
    void (*spread)(const float* dy, float* dx, const lowbit_shortcut& of);
};

#define LOWBIT_SHORTCUT(NAME, TARGET)                                             \
    namespace NAME {                                                              \
    TARGET void thin(const float* x, float* y, const lowbit_shortcut& of) {       \
        of.stride == 2 ? thin_rows<2>(x, y, of) : thin_rows<0>(x, y, of);         \
    }                                                                             \
    TARGET void spread(const float* dy, float* dx, const lowbit_shortcut& of) {   \
        of.stride == 2 ? spread_rows<2>(dy, dx, of) : spread_rows<0>(dy, dx, of); \
    }                                                                             \
    const Loops loops = {thin, spread};                                           \
    }

#if LOWBIT_X86
LOWBIT_SHORTCUT(avx512, LOWBIT_TARGET_AVX512)
LOWBIT_SHORTCUT(avx2, LOWBIT_TARGET_AVX2)
#endif
LOWBIT_SHORTCUT(baseline, )

int64_t thin_pixels(const lowbit_shortcut& of) {
    return ((of.height + of.stride - 1) / of.stride) * ((of.width + of.stride - 1) / of.stride);
}

}  // namespace

int lowbit_shortcut_forward(const float* x, float* y, const lowbit_shortcut* of) {
    return lowbit::guarded([&] {
        const Loops& own = LOWBIT_CHOOSE(loops);
        const int64_t pixels = of->height * of->width, kept = thin_pixels(*of);
        const int64_t outputs = of->channels + 2 * of->zero_channels;
        lowbit::parallel_ranges(of->images * outputs, kept, [&](int64_t first, int64_t last) {
            for (int64_t plane = first; plane < last; ++plane) {
                const int64_t channel = plane % outputs - of->zero_channels;
                if (channel < 0 || channel >= of->channels) {
                    std::memset(y + plane * kept, 0, size_t(kept) * sizeof(float));
                } else {
                    const int64_t source = plane / outputs * of->channels + channel;
                    own.thin(x + source * pixels, y + plane * kept, *of);
                }
            }
        });
    });
}

int lowbit_shortcut_backward(const float* dy, float* dx, const lowbit_shortcut* of) {
    return lowbit::guarded([&] {
        const Loops& own = LOWBIT_CHOOSE(loops);
        const int64_t pixels = of->height * of->width, kept = thin_pixels(*of);
        const int64_t outputs = of->channels + 2 * of->zero_channels;
        lowbit::parallel_ranges(of->images * of->channels, pixels, [&](int64_t first, int64_t last) {
            for (int64_t plane = first; plane < last; ++plane) {
                const int64_t channel = plane % of->channels + of->zero_channels;
                const float* from = dy + (plane / of->channels * outputs + channel) * kept;
                own.spread(from, dx + plane * pixels, *of);
            }
        });
    });
}
