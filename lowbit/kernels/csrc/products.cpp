// The C interface of forward and grad_input; see products.h.
#include "products.h"

#include "depthwise.h"
#include "driver.h"
#include "winograd.h"
#include "winograd_rows.h"

#include <new>

namespace {

using lowbit::conv::Product;

Product forward_product(const lowbit_geometry& g, const lowbit_operand* x, const lowbit_operand* w, const float* bias,
                        float* y, int64_t* sums) {
    return {x, w, false, g.outputs / g.groups * w->of_n, w->of_n, false, bias, y, sums};
}

// With scales by pixel, taps are added up one by one; but sums are over all of them.
Product grad_input_product(const lowbit_operand* dy, const lowbit_operand* w, float* dx, int64_t* sums) {
    return {dy, w, true, 0, w->of_c, dy->of_pixel != 0 && !sums, nullptr, dx, sums};
}

void multiply(const lowbit::conv::Convolution& convolution, const Product& product) {
    if (lowbit::winograd::fits(convolution, product)) return lowbit::winograd::run(convolution, product);
    lowbit::conv::run(convolution, product);
}

}  // namespace

int lowbit_forward(const lowbit_geometry* geometry, const lowbit_operand* x, const lowbit_operand* w,
                   const float* bias, float* y, int64_t* sums) {
    try {
        if (lowbit::is_depthwise(*geometry)) {
            lowbit::depthwise_forward(*geometry, *x, *w, bias, y, sums);
            return 0;
        }
        multiply(lowbit::conv::forward_of(*geometry), forward_product(*geometry, x, w, bias, y, sums));
    } catch (const std::bad_alloc&) {
        return -1;
    }
    return 0;
}

int lowbit_grad_input(const lowbit_geometry* geometry, const lowbit_operand* dy, const lowbit_operand* w, float* dx,
                      int64_t* sums) {
    try {
        if (lowbit::is_depthwise(*geometry)) {
            lowbit::depthwise_grad_input(*geometry, *dy, *w, dx, sums);
            return 0;
        }
        const Product product = grad_input_product(dy, w, dx, sums);
        multiply(lowbit::conv::grad_input_of(*geometry, product.by_tap), product);
    } catch (const std::bad_alloc&) {
        return -1;
    }
    return 0;
}

int64_t lowbit_multiplications(const lowbit_geometry* geometry, int32_t product, const lowbit_operand* first,
                               const lowbit_operand* second) {
    using namespace lowbit;
    const lowbit_geometry& g = *geometry;
    const conv::Image output = conv::forward_of(g).result;
    const int64_t pairs = g.batch * (g.channels / g.groups) * g.outputs;
    bool is_winograd = false;
    if (!is_depthwise(g) && product == 0) {
        const Product forward = forward_product(g, first, second, nullptr, nullptr, nullptr);
        is_winograd = winograd::fits(conv::forward_of(g), forward);
    } else if (!is_depthwise(g) && product == 1) {
        const Product grad_input = grad_input_product(first, second, nullptr, nullptr);
        is_winograd = winograd::fits(conv::grad_input_of(g, grad_input.by_tap), grad_input);
    } else if (!is_depthwise(g)) {
        is_winograd = winograd::fits(weight::WeightPlan(g, *first, *second), *first, *second);
    }
    if (!is_winograd) return pairs * output.height * output.width * g.kernel_h * g.kernel_w;
    const winograd::Tiling tiling(1, product == 1 ? g.height : output.height, product == 1 ? g.width : output.width);
    return pairs * tiling.rows * tiling.columns * winograd::kPoints;
}
