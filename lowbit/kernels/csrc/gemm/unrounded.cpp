// Makes the integers of both operands, then calls the product of gemm.h.
#include "gemm/unrounded.h"

#include "common/scratch.h"

#include <algorithm>
#include <limits>

namespace lowbit {
namespace {

lowbit_operand made(const lowbit_unrounded& of, Scratch& integers_scratch, Scratch& scales_scratch) {
    lowbit_operand operand = of.operand;
    if (of.values) {
        const lowbit_quantization& by = of.quantization;
        int64_t elements = 1, groups = 1;
        for (int axis = 0; axis < 4; ++axis) {
            elements *= by.axes.sizes[axis];
            groups *= by.axes.owns[axis] ? by.axes.sizes[axis] : 1;
        }
        uint8_t* integers = static_cast<uint8_t*>(const_cast<void*>(operand.integers));
        float* scales = const_cast<float*>(operand.scale);
        if (!integers) integers = integers_scratch.get<uint8_t>(elements);
        if (!scales) scales = scales_scratch.get<float>(groups);
        const int64_t nan_count =
            checked(lowbit_to_dynamic_integers(of.values, integers, scales, &by.axes, &by.levels, of.largest,
                                               by.iterations, by.ratio, by.draws, by.count_draws, by.first));
        // Two draws are added up, so that the scale is half of it.
        for (int64_t i = 0; by.count_draws == 2 && i < groups; ++i) scales[i] *= 0.5f;
        if (nan_count) std::fill(scales, scales + groups, std::numeric_limits<float>::quiet_NaN());
        operand.integers = integers;
        operand.scale = scales;
    } else if (of.packed) {
        uint8_t* integers = integers_scratch.get<uint8_t>(of.packed_count);
        checked(lowbit_unpack_nibbles(of.packed, integers, of.packed_count, operand.lowest < 0));
        operand.integers = integers;
    }
    return operand;
}

// What multiply(first operand, second operand) returns, or a status.
template <class Multiply>
int32_t multiply_made(const lowbit_unrounded* first, const lowbit_unrounded* second, Multiply multiply) {
    return guarded([&]() -> int32_t {
        thread_local Scratch first_integers, first_scales, second_integers, second_scales;
        const lowbit_operand a = made(*first, first_integers, first_scales),
                             b = made(*second, second_integers, second_scales);
        return multiply(&a, &b);
    });
}

}  // namespace
}  // namespace lowbit

int32_t lowbit_unrounded_forward(const lowbit_geometry* geometry, const lowbit_unrounded* x,
                                 const lowbit_unrounded* w, const lowbit_unrounded_results* to) {
    return lowbit::multiply_made(x, w, [&](const lowbit_operand* a, const lowbit_operand* b) {
        for (int64_t n = 0; n < geometry->batch; ++n) {
            for (int64_t o = 0; o < geometry->outputs; ++o) {
                to->scales[n * geometry->outputs + o] = a->scale[n * a->of_n] * b->scale[o * b->of_n];
            }
        }
        if (to->packed) {
            const int64_t count = geometry->batch * geometry->channels * geometry->height * geometry->width;
            lowbit::checked(lowbit_pack_nibbles(static_cast<const uint8_t*>(a->integers), to->packed, count));
        }
        return lowbit_forward_multiples(geometry, a, b, &to->multiples);
    });
}

int lowbit_unrounded_grad_input(const lowbit_geometry* geometry, const lowbit_unrounded* dy,
                                const lowbit_unrounded* w, float* dx) {
    return lowbit::multiply_made(dy, w, [&](const lowbit_operand* a, const lowbit_operand* b) {
        return lowbit_grad_input(geometry, a, b, dx, nullptr);
    });
}

int lowbit_unrounded_grad_weight(const lowbit_geometry* geometry, const lowbit_unrounded* dy,
                                 const lowbit_unrounded* x, float* dw) {
    return lowbit::multiply_made(dy, x, [&](const lowbit_operand* a, const lowbit_operand* b) {
        return lowbit_grad_weight(geometry, a, b, dw, nullptr);
    });
}
