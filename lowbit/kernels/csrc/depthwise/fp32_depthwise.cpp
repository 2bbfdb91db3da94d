// The C function of fp32_depthwise.h, in parallel over channels; small images are processed several at a
// time.
#include "depthwise/fp32_depthwise.h"

#include "common/cpu.h"
#include "common/scratch.h"
#include "common/threads.h"
#include "depthwise/planes.h"

#include <cstring>
#include <vector>

namespace {

using namespace lowbit::depthwise;
using lowbit::Scratch;

float* zeros(Scratch& scratch, int64_t count) {
    float* memory = scratch.get<float>(count);
    memset(memory, 0, size_t(count) * sizeof(float));
    return memory;
}

template <class T, class Pack>
void grad_weight(const lowbit_geometry& geometry, const T* x, float scale, const float* dy, float* dw,
                 Pack pack) {
    const Shape s(geometry);
    const Kernels& kernels = kernels_for(lowbit::instruction_set());
    const InputPlanes planes(s);
    const int64_t most = images_per_pass(planes.size(), s.g.batch), all = s.g.batch * s.g.channels;
    const T* x_end = x + all * s.x_plane();
    const float* dy_end = dy + all * s.y_plane();
    lowbit::parallel_for(s.g.channels, [&](int64_t c) {
        thread_local Scratch x_scratch, dy_scratch;
        std::vector<int64_t> offsets(s.taps);
        std::vector<double> totals(s.taps);
        for (int64_t n = 0; n < s.g.batch; n += most) {
            const int64_t images = s.g.batch - n < most ? s.g.batch - n : most,
                          count = images * planes.size();
            float* plane = zeros(x_scratch, planes.elements(images));
            float* gradient = zeros(dy_scratch, count + kStep);
            planes.offsets(images, offsets.data());
            planes.each_phase(images, [&](const View& view, int64_t first) {
                (kernels.*pack)(x + (n * s.g.channels + c) * s.x_plane(), s.g.channels * s.x_plane(), images,
                                x_end, view, plane + first);
            });
            kernels.pack_floats(dy + (n * s.g.channels + c) * s.y_plane(), s.g.channels * s.y_plane(), images,
                                dy_end, planes.of_output(), gradient);
            // Without rows of zeros behind an image, a step would reach into the next one.
            const int64_t used = s.h.result * planes.columns;
            const bool apart = lowbit::round_up(used, kStep) <= planes.size();
            const Planes counted = apart ? Planes{images, planes.size(), used} : Planes{1, count, count};
            kernels.dots(gradient, plane, offsets.data(), s.taps, counted, totals.data());
        }
        for (int64_t tap = 0; tap < s.taps; ++tap) dw[c * s.taps + tap] = float(totals[tap] * double(scale));
    });
}

}  // namespace

int lowbit_fp32_depthwise_grad_weight(const lowbit_geometry* geometry, const void* x, int32_t number,
                                      float scale, const float* dy, float* dw) {
    return lowbit::guarded([&] {
        if (number == LOWBIT_INT8) {
            grad_weight(*geometry, static_cast<const int8_t*>(x), scale, dy, dw, &Kernels::pack_signed);
        } else if (number == LOWBIT_UINT8) {
            grad_weight(*geometry, static_cast<const uint8_t*>(x), scale, dy, dw, &Kernels::pack_unsigned);
        } else {
            grad_weight(*geometry, static_cast<const float*>(x), scale, dy, dw, &Kernels::pack_floats);
        }
    });
}
