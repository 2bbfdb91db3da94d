// The three products of a depthwise convolution, in parallel over channels. Small images are processed
// several at a time, so that loops over planes are long.
#include "depthwise/depthwise.h"

#include "common/cpu.h"
#include "common/scratch.h"
#include "common/threads.h"
#include "depthwise/planes.h"

#include <cstring>
#include <vector>

// ---- Packing of the operands.

namespace lowbit::depthwise {
namespace {

int64_t magnitude(const lowbit_operand& o) { return max_of(1, max_of(o.highest, -int64_t(o.lowest))); }

// Products that an accumulator with the largest value `largest` holds.
int64_t max_products(const lowbit_operand& a, const lowbit_operand& b, int64_t largest) {
    return largest / (magnitude(a) * magnitude(b));
}

int16_t value(const lowbit_operand& o, int64_t at) {
    const uint8_t byte = static_cast<const uint8_t*>(o.integers)[at];
    return o.lowest < 0 ? int8_t(byte) : byte;
}

// The end of a tensor.
const uint8_t* end_of(const lowbit_operand& o, int64_t batch, int64_t channels, int64_t plane) {
    return static_cast<const uint8_t*>(o.integers) + batch * channels * plane;
}

const uint8_t* plane_of(const lowbit_operand& o, int64_t n, int64_t channels, int64_t c, int64_t plane) {
    return static_cast<const uint8_t*>(o.integers) + (n * channels + c) * plane;
}

// The planes of some images of one channel.
void pack_input(const Kernels& kernels, const InputPlanes& planes, const lowbit_operand& x, int64_t n,
                int64_t images, int64_t c, int16_t* out) {
    const Shape& s = planes.s;
    const uint8_t* from = plane_of(x, n, s.g.channels, c, s.x_plane());
    const uint8_t* end = end_of(x, s.g.batch, s.g.channels, s.x_plane());
    memset(out, 0, planes.elements(images) * sizeof *out);
    planes.each_phase(images, [&](const View& view, int64_t first) {
        kernels.pack(from, s.g.channels * s.x_plane(), images, end, view, x.lowest < 0, out + first);
    });
}

void pack_gradient(const Kernels& kernels, const GradientPlanes& planes, const lowbit_operand& dy, int64_t n,
                   int64_t images, int64_t c, int16_t* out) {
    const Shape& s = planes.s;
    const uint8_t* end = end_of(dy, s.g.batch, s.g.outputs, s.y_plane());
    memset(out, 0, (s.multiplier * images * planes.size() + planes.slack()) * sizeof *out);
    for (int64_t m = 0; m < s.multiplier; ++m, out += images * planes.size()) {
        const uint8_t* from = plane_of(dy, n, s.g.outputs, c * s.multiplier + m, s.y_plane());
        kernels.pack(from, s.g.outputs * s.y_plane(), images, end, planes.view(), dy.lowest < 0, out);
    }
}

// The scales of the pixels of some images, laid out like a plane of the gradient.
void expand_scales(const GradientPlanes& planes, const lowbit_operand& dy, int64_t n, int64_t images,
                   float* out) {
    const Shape& s = planes.s;
    for (int64_t i = 0; i < images * planes.size() + planes.slack(); ++i) out[i] = 0;
    for (int64_t row = 0; row < images * s.h.result; ++row) {
        const int64_t image = row / s.h.result, p = row % s.h.result;
        const float* from = dy.scale + (n + image) * dy.of_n + p * s.w.result * dy.of_pixel;
        float* to = out + image * planes.size() + (p + s.h.reach()) * planes.columns + s.w.reach();
        for (int64_t q = 0; q < s.w.result; ++q) to[q] = from[q * dy.of_pixel];
    }
}

// The correlation of some images, of which only the first `used` elements of each plane are needed: taps
// reach into the rows behind. Writes up to a step more, which the next image overwrites.
void correlate(const Kernels& kernels, const int16_t* planes, const int64_t* offsets, const int16_t* weights,
               int64_t taps, int64_t budget, int64_t images, int64_t size, int64_t used, int32_t* sums) {
    for (int64_t image = 0; image < images; ++image) {
        const int64_t at = image * size;
        kernels.correlate(planes + at, offsets, weights, taps, budget, used, sums + at);
    }
}

// Offsets and weights of a correlation.
struct Taps {
    std::vector<int64_t> offsets;
    std::vector<int16_t> weights;

    void clear() {
        offsets.clear();
        weights.clear();
    }
    void add(int64_t offset, int16_t weight) {
        offsets.push_back(offset);
        weights.push_back(weight);
    }
};

}  // namespace
}  // namespace lowbit::depthwise

// ---- The three products.

namespace lowbit {

bool is_depthwise(const lowbit_geometry& g) {
    const int64_t multiplier = g.outputs / g.groups, products = multiplier * g.kernel_h * g.kernel_w;
    const bool fits = products <= INT32_MAX / (255 * 255) && multiplier <= (1 << 24) / (255 * 255);
    return g.groups > 1 && g.groups == g.channels && fits;
}

using namespace depthwise;

void depthwise_forward(const lowbit_geometry& geometry, const lowbit_operand& x, const lowbit_operand& w,
                       const float* bias, float* y, int64_t* sums) {
    const Shape s(geometry);
    const Kernels& kernels = kernels_for(instruction_set());
    const InputPlanes planes(s);
    const int64_t max_images = images_per_pass(planes.size(), s.g.batch),
                  budget = max_products(x, w, INT16_MAX);
    const OutputView target = {s.h.result, planes.columns, s.h.result, s.w.result, 0, 0, 1, 1};
    parallel_for(s.g.channels, [&](int64_t c) {
        thread_local Scratch plane_scratch, sum_scratch;
        int16_t* plane = plane_scratch.get<int16_t>(planes.elements(max_images));
        int32_t* found = sum_scratch.get<int32_t>(result_elements(max_images * planes.size()));
        std::vector<int64_t> offsets(s.taps);
        std::vector<int16_t> weights(s.taps);
        for (int64_t n = 0; n < s.g.batch; n += max_images) {
            const int64_t images = s.g.batch - n < max_images ? s.g.batch - n : max_images;
            pack_input(kernels, planes, x, n, images, c, plane);
            planes.offsets(images, offsets.data());
            for (int64_t o = c * s.multiplier; o < (c + 1) * s.multiplier; ++o) {
                for (int64_t tap = 0; tap < s.taps; ++tap) weights[tap] = value(w, o * s.taps + tap);
                correlate(kernels, plane, offsets.data(), weights.data(), s.taps, budget, images,
                          planes.size(), s.h.result * planes.columns, found);
                for (int64_t i = 0; i < images; ++i) {
                    const int64_t at = ((n + i) * s.g.outputs + o) * s.y_plane();
                    const int32_t* from = found + i * planes.size();
                    if (sums) {
                        kernels.copy_sums(from, target, sums + at);
                    } else {
                        const float scale = x.scale[(n + i) * x.of_n] * w.scale[o * w.of_n];
                        kernels.dequantize_sums(from, target, scale, bias ? bias + o : nullptr, y + at);
                    }
                }
            }
        }
    });
}

// Input pixels that meet the same taps form a phase; there are stride * stride of them. Each is a correlation
// with planes of dy, which have zeros in front for taps that reach before the first row or column.
void depthwise_grad_input(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& w,
                          float* dx, int64_t* sums) {
    constexpr int64_t kChannels = 8;  // per work item: they share the scales by pixel
    const Shape s(geometry);
    const Kernels& kernels = kernels_for(instruction_set());
    const GradientPlanes planes(s);
    const bool by_pixel = !sums && dy.of_pixel != 0;
    const int64_t max_images = images_per_pass(planes.size(), s.g.batch),
                  budget = max_products(dy, w, INT16_MAX);
    const int64_t one = max_images * planes.size(), bundles = (s.g.channels + kChannels - 1) / kChannels;
    const int64_t passes = (s.g.batch + max_images - 1) / max_images;
    // Channels first: batch norm, which reads dX, divides channels among the threads.
    parallel_for(bundles * passes, [&](int64_t item) {
        thread_local Scratch plane_scratch, sum_scratch, scale_scratch, value_scratch, float_scratch;
        int16_t* plane = plane_scratch.get<int16_t>(s.multiplier * one + planes.slack());
        int32_t* found = sum_scratch.get<int32_t>(result_elements(one));
        float* floats = float_scratch.get<float>(by_pixel ? s.multiplier * one + planes.slack() : 1);
        float* values = value_scratch.get<float>(by_pixel ? result_elements(one) : 1);
        float* scales = scale_scratch.get<float>(by_pixel ? one + planes.slack() : 1);
        Taps taps;
        const int64_t n = item % passes * max_images, start = item / passes * kChannels;
        const int64_t images = s.g.batch - n < max_images ? s.g.batch - n : max_images,
                      count = images * planes.size();
        if (by_pixel) expand_scales(planes, dy, n, images, scales);
        for (int64_t c = start; c < s.g.channels && c < start + kChannels; ++c) {
            pack_gradient(kernels, planes, dy, n, images, c, plane);
            if (by_pixel) kernels.to_floats(plane, s.multiplier * count + planes.slack(), floats);
            for (int64_t i = 0; i < s.h.stride; ++i) {
                for (int64_t j = 0; j < s.w.stride; ++j) {
                    const OutputView target = planes.target(i, j);
                    const int64_t first = (n * s.g.channels + c) * s.x_plane();
                    taps.clear();
                    if (by_pixel) {
                        std::vector<float> weights;
                        planes.each_tap(i, j, [&](int64_t tap, int64_t offset) {
                            taps.add(offset, 0);
                            for (int64_t o = c * s.multiplier; o < (c + 1) * s.multiplier; ++o) {
                                weights.push_back(value(w, o * s.taps + tap));
                            }
                        });
                        const int64_t met = int64_t(taps.offsets.size());
                        kernels.correlate_scaled(floats, s.multiplier, count, taps.offsets.data(),
                                                 weights.data(), met, scales, count, values);
                        for (int64_t image = 0; image < images; ++image) {
                            float* to = dx + first + image * s.g.channels * s.x_plane();
                            kernels.scale_values(values + image * planes.size(), target, w.scale[0], nullptr,
                                                 to);
                        }
                        continue;
                    }
                    for (int64_t m = 0; m < s.multiplier; ++m) {
                        planes.each_tap(i, j, [&](int64_t tap, int64_t offset) {
                            taps.add(m * count + offset, value(w, (c * s.multiplier + m) * s.taps + tap));
                        });
                    }
                    correlate(kernels, plane, taps.offsets.data(), taps.weights.data(),
                              int64_t(taps.offsets.size()), budget, images, planes.size(),
                              target.rows * planes.columns, found);
                    for (int64_t image = 0; image < images; ++image) {
                        const int64_t at = first + image * s.g.channels * s.x_plane();
                        const int32_t* from = found + image * planes.size();
                        if (sums) {
                            kernels.copy_sums(from, target, sums + at);
                        } else {
                            const float scale = dy.scale[(n + image) * dy.of_n] * w.scale[0];
                            kernels.dequantize_sums(from, target, scale, nullptr, dx + at);
                        }
                    }
                }
            }
        }
    });
}

void depthwise_grad_weight(const lowbit_geometry& geometry, const lowbit_operand& dy, const lowbit_operand& x,
                           float* dw, int64_t* sums) {
    const Shape s(geometry);
    const Kernels& kernels = kernels_for(instruction_set());
    const InputPlanes planes(s);
    const bool by_sample = !sums && (dy.of_n != 0 || x.of_n != 0);
    const int64_t max_images = by_sample ? 1 : images_per_pass(planes.size(), s.g.batch);
    const int64_t limit = max_products(dy, x, INT32_MAX);
    const View view = planes.of_output();
    const uint8_t* end = end_of(dy, s.g.batch, s.g.outputs, s.y_plane());
    parallel_for(s.g.channels, [&](int64_t c) {
        thread_local Scratch x_scratch, dy_scratch;
        int16_t* plane = x_scratch.get<int16_t>(planes.elements(max_images));
        int16_t* gradient = dy_scratch.get<int16_t>(max_images * planes.size() + kStep);
        std::vector<int64_t> offsets(s.taps), totals(s.multiplier * s.taps);
        const int64_t first = c * s.multiplier;  // output channel
        for (int64_t n = 0; n < s.g.batch; n += max_images) {
            const int64_t images = s.g.batch - n < max_images ? s.g.batch - n : max_images,
                          count = images * planes.size();
            pack_input(kernels, planes, x, n, images, c, plane);
            planes.offsets(images, offsets.data());
            for (int64_t m = 0; m < s.multiplier; ++m) {
                const uint8_t* from = plane_of(dy, n, s.g.outputs, first + m, s.y_plane());
                memset(gradient, 0, (count + kStep) * sizeof *gradient);
                kernels.pack(from, s.g.outputs * s.y_plane(), images, end, view, dy.lowest < 0, gradient);
                for (int64_t tap = 0; tap < s.taps; ++tap) {
                    int64_t& total = totals[m * s.taps + tap];
                    for (int64_t start = 0; start < count; start += limit) {
                        const int64_t now = count - start < limit ? count - start : limit;
                        total += kernels.dot(gradient + start, plane + offsets[tap] + start, now);
                    }
                    if (!by_sample) continue;
                    const float scale_dy = dy.scale[n * dy.of_n + (first + m) * dy.of_c];
                    const float scale = scale_dy * x.scale[n * x.of_n + c * x.of_c];
                    float& to = dw[(first + m) * s.taps + tap];
                    to = n ? to + float(total) * scale : float(total) * scale;
                    total = 0;
                }
            }
        }
        for (int64_t i = 0; !by_sample && i < s.multiplier * s.taps; ++i) {
            const int64_t at = first * s.taps + i;
            if (sums) {
                sums[at] = totals[i];
            } else {
                dw[at] = float(totals[i]) * (dy.scale[at / s.taps * dy.of_c] * x.scale[c * x.of_c]);
            }
        }
    });
}

}  // namespace lowbit
