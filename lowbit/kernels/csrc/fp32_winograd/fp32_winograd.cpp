// The C functions of fp32_winograd.h: blocks of tiles, in parallel.
#include "fp32_winograd/fp32_winograd.h"

#include "common/scratch.h"
#include "common/threads.h"
#include "fp32_winograd/products.h"
#include "fp32_winograd/tile_transforms.h"

#include <algorithm>

namespace lowbit::fp32_winograd {
namespace {

// The loops for one instruction set.
struct Loops {
    void (*input_points)(Pixels of, int64_t rows, int64_t across, float* points, int64_t stride);
    void (*gradient_points)(Pixels of, int64_t rows, int64_t across, float* points, int64_t stride);
    void (*output_tiles)(const float* points, int64_t stride, int64_t rows, int64_t across, Pixels to);
    void (*kernel_points)(Kernels of, int64_t channels, float* points, int64_t stride);
    void (*gradient_kernels)(const float* points, int64_t stride, int64_t row, int64_t channels,
                             KernelGradients to);
    void (*transpose)(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                      int64_t to_row);
};

#define LOWBIT_LOOPS(NAME, TARGET, LANES)                                                              \
    namespace NAME {                                                                                   \
    TARGET void input(Pixels of, int64_t rows, int64_t across, float* points, int64_t stride) {        \
        input_points<LANES>(of, rows, across, points, stride);                                         \
    }                                                                                                  \
    TARGET void gradient(Pixels of, int64_t rows, int64_t across, float* points, int64_t stride) {     \
        gradient_points<LANES>(of, rows, across, points, stride);                                      \
    }                                                                                                  \
    TARGET void output(const float* points, int64_t stride, int64_t rows, int64_t across, Pixels to) { \
        output_tiles<LANES>(points, stride, rows, across, to);                                         \
    }                                                                                                  \
    TARGET void kernel(Kernels of, int64_t channels, float* points, int64_t stride) {                  \
        kernel_points<LANES>(of, channels, points, stride);                                            \
    }                                                                                                  \
    TARGET void kernel_gradient(const float* points, int64_t stride, int64_t row, int64_t channels,    \
                                KernelGradients to) {                                                  \
        gradient_kernels<LANES>(points, stride, row, channels, to);                                    \
    }                                                                                                  \
    TARGET void turn(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,    \
                     int64_t to_row) {                                                                 \
        transpose(from, from_row, rows, columns, to, to_row);                                          \
    }                                                                                                  \
    const Loops loops = {input, gradient, output, kernel, kernel_gradient, turn};                      \
    }

#if LOWBIT_X86
LOWBIT_LOOPS(avx512, LOWBIT_TARGET_AVX512, 16)
LOWBIT_LOOPS(avx2, LOWBIT_TARGET_AVX2, 8)
#endif
LOWBIT_LOOPS(baseline, , 8)

const Loops& loops() { return LOWBIT_CHOOSE(loops); }

// One image tensor, in NCHW.
struct Planes {
    int64_t channels, height, width;
};

// How the tiles of an output are divided: rows of tiles, counted through all images, make blocks.
struct Tiling {
    int64_t down, across;  // tiles of an image
    int64_t all_rows;      // of tiles, of all images
    int64_t block_rows;    // of tiles, in a block
    int64_t tiles() const { return block_rows * across; }
    int64_t blocks() const { return ceil_div(all_rows, block_rows); }
};

// Blocks whose points stay in the second-level cache, or, where the kernels' points alone are larger, blocks
// of so many tiles that reading these takes less time than multiplying by them.
Tiling tiling_of(const lowbit_fp32_conv& of) {
    constexpr int64_t kPointsInCache = 100000, kCache = 250000;  // numbers
    Tiling made;
    made.down = ceil_div(of.out_height, kTile);
    made.across = ceil_div(of.out_width, kTile);
    made.all_rows = of.images * made.down;
    const int64_t least = kPoints * of.channels * of.outputs > kCache ? 64 : 16;
    const int64_t tiles = std::max(least, kPointsInCache / (kPoints * (of.channels + of.outputs)));
    made.block_rows = std::min(std::max<int64_t>(1, tiles / made.across), made.all_rows);
    return made;
}

// body(image, first row of tiles in it, rows, tiles before them in the block) for each image of a block.
template <class Body>
void each_image(const Tiling& tiling, int64_t block, const Body& body) {
    int64_t row = block * tiling.block_rows;
    const int64_t end = std::min(row + tiling.block_rows, tiling.all_rows), start = row;
    while (row < end) {
        const int64_t image = row / tiling.down, first = row % tiling.down;
        const int64_t rows = std::min(end - row, tiling.down - first);
        body(image, first, rows, (row - start) * tiling.across);
        row += rows;
    }
}

int64_t tiles_in(const Tiling& tiling, int64_t block) {
    const int64_t left = tiling.all_rows - block * tiling.block_rows;
    return std::min(left, tiling.block_rows) * tiling.across;
}

// Rows [first, first + rows) and columns [left, left + to.columns) of an image, with zeros outside of it.
void load_pixels(const Loops& own, const float* image, Planes planes, int64_t first, int64_t rows,
                 int64_t left, Pixels to) {
    memset(to.first, 0, rows * to.columns * to.channels * sizeof(float));
    const int64_t from = std::max<int64_t>(0, left), until = std::min(planes.width, left + to.columns);
    if (from >= until) return;
    for (int64_t row = std::max<int64_t>(0, -first); row < rows && first + row < planes.height; row++) {
        own.transpose(image + (first + row) * planes.width + from, planes.height * planes.width,
                      planes.channels, until - from,
                      to.first + (row * to.columns + from - left) * to.channels, to.channels);
    }
}

// The same the other way: pixels to rows [first, first + rows) of an image, as far as it has them.
void store_pixels(const Loops& own, Pixels from, int64_t rows, float* image, Planes planes, int64_t first) {
    for (int64_t row = 0; row < rows && first + row < planes.height; row++) {
        own.transpose(from.first + row * from.columns * from.channels, from.channels,
                      std::min(from.columns, planes.width), from.channels,
                      image + (first + row) * planes.width, planes.height * planes.width);
    }
}

// Y = X * W, where W is read as `kernel` says: [panel][36][channels][16] are its points.
void convolve(const lowbit_fp32_conv& of, const float* x, Kernels kernel, float* y) {
    const Loops& own = loops();
    thread_local Scratch weights;
    const int64_t panel = of.channels * kPanel, panels = of.outputs / kPanel;
    float* const kernels = weights.get<float>(kPoints * panel * panels);
    parallel_for(panels, [&](int64_t p) {
        Kernels part = kernel;
        part.first += p * kPanel * kernel.lane;
        own.kernel_points(part, of.channels, kernels + p * kPoints * panel, panel);
    });
    const Planes in{of.channels, of.height, of.width}, out{of.outputs, of.out_height, of.out_width};
    const Tiling tiling = tiling_of(of);
    const int64_t in_columns = tiling.across * kTile + 2, out_columns = tiling.across * kTile;
    parallel_for(tiling.blocks(), [&](int64_t block) {
        thread_local Scratch pixels, factors, sums;
        const int64_t most_rows = std::min(tiling.block_rows, tiling.down) * kTile + 2;
        const int64_t tiles = tiles_in(tiling, block);
        const int64_t of_x = tiles * of.channels, of_y = tiles * of.outputs;
        const int64_t most = std::max(of.channels, of.outputs);
        float* const memory = pixels.get<float>(most_rows * in_columns * most);
        float* const points = factors.get<float>(kPoints * of_x);
        float* const products = sums.get<float>(kPoints * of_y);
        each_image(tiling, block, [&](int64_t image, int64_t first, int64_t rows, int64_t before) {
            const Pixels part{memory, in_columns, of.channels};
            load_pixels(own, x + image * of.channels * of.height * of.width, in, first * kTile - of.top,
                        rows * kTile + 2, -of.left, part);
            own.input_points(part, rows, tiling.across, points + before * of.channels, of_x);
        });
        for (int64_t point = 0; point < kPoints; point++) {
            multiply(Product{tiles, panels, of.channels, points + point * of_x, of.channels, 1,
                             kernels + point * panel, kPoints * panel, kPanel, products + point * of_y,
                             of.outputs, kPanel, false});
        }
        each_image(tiling, block, [&](int64_t image, int64_t first, int64_t rows, int64_t before) {
            const Pixels part{memory, out_columns, of.outputs};
            own.output_tiles(products + before * of.outputs, of_y, rows, tiling.across, part);
            store_pixels(own, part, rows * kTile, y + image * of.outputs * of.out_height * of.out_width, out,
                         first * kTile);
        });
    });
}

void grad_weight(const lowbit_fp32_conv& of, const float* x, const float* dy, float* dw) {
    const Loops& own = loops();
    const Planes in{of.channels, of.height, of.width}, out{of.outputs, of.out_height, of.out_width};
    const Tiling tiling = tiling_of(of);
    const int64_t in_columns = tiling.across * kTile + 2, out_columns = tiling.across * kTile;
    const int64_t of_x = tiling.tiles() * of.channels, of_y = tiling.tiles() * of.outputs;
    const int64_t size = of.channels * of.outputs;
    thread_local Scratch factors, gradients, sums;
    float* const points = factors.get<float>(kPoints * of_x);
    float* const gradient = gradients.get<float>(kPoints * of_y);
    float* const products = sums.get<float>(kPoints * size);
    // Blocks one after the other, since their sums are added in this order.
    for (int64_t block = 0; block < tiling.blocks(); block++) {
        const int64_t tiles = tiles_in(tiling, block);
        parallel_for(tiles / tiling.across, [&](int64_t row) {
            thread_local Scratch pixels;
            const int64_t at = block * tiling.block_rows + row;
            const int64_t image = at / tiling.down, first = at % tiling.down * kTile;
            const int64_t before = row * tiling.across;
            float* const memory = pixels.get<float>(kSide * in_columns * std::max(of.channels, of.outputs));
            const Pixels part{memory, in_columns, of.channels};
            load_pixels(own, x + image * of.channels * of.height * of.width, in, first - of.top, kSide,
                        -of.left, part);
            own.input_points(part, 1, tiling.across, points + before * of.channels, of_x);
            const Pixels above{memory, out_columns, of.outputs};
            load_pixels(own, dy + image * of.outputs * of.out_height * of.out_width, out, first, kTile, 0,
                        above);
            own.gradient_points(above, 1, tiling.across, gradient + before * of.outputs, of_y);
        });
        parallel_for(kPoints, [&](int64_t point) {
            multiply(Product{of.channels, of.outputs / kPanel, tiles, points + point * of_x, 1, of.channels,
                             gradient + point * of_y, kPanel, of.outputs, products + point * size, of.outputs,
                             kPanel, block > 0});
        });
    }
    parallel_for(of.outputs / kPanel, [&](int64_t p) {
        const int64_t first = p * kPanel;
        const KernelGradients to{dw + first * of.channels * 9, of.channels * 9, 9, false};
        own.gradient_kernels(products + first, size, of.outputs, of.channels, to);
    });
}

}  // namespace
}  // namespace lowbit::fp32_winograd

int lowbit_fp32_winograd_pays(void) { return lowbit::fp32_winograd::has_fused_multiply_add(); }

int lowbit_fp32_winograd_forward(const lowbit_fp32_conv* of, const float* x, const float* w, float* y) {
    return lowbit::guarded([&] {
        const lowbit::fp32_winograd::Kernels kernel{w, of->channels * 9, 9, false};
        lowbit::fp32_winograd::convolve(*of, x, kernel, y);
    });
}

int lowbit_fp32_winograd_grad_input(const lowbit_fp32_conv* of, const float* dy, const float* w, float* dx) {
    return lowbit::guarded([&] {
        const lowbit_fp32_conv back{of->images, of->outputs, of->out_height, of->out_width, of->channels,
                                    of->height, of->width,   2 - of->top,    2 - of->left};
        const lowbit::fp32_winograd::Kernels kernel{w, 9, of->channels * 9, true};
        lowbit::fp32_winograd::convolve(back, dy, kernel, dx);
    });
}

int lowbit_fp32_winograd_grad_weight(const lowbit_fp32_conv* of, const float* x, const float* dy, float* dw) {
    return lowbit::guarded([&] { lowbit::fp32_winograd::grad_weight(*of, x, dy, dw); });
}
