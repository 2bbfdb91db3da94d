// The C functions of gemm.h: choose the direct, Winograd or depthwise way for a product, and run it.
#include "gemm/gemm.h"

#include "depthwise/depthwise.h"
#include "gemm/conv_gemm.h"
#include "gemm/grad_weight.h"
#include "winograd/transforms.h"
#include "winograd/winograd.h"

namespace lowbit {
namespace {

using gemm::Product;

Product forward_product(const lowbit_geometry& g, const lowbit_operand* x, const lowbit_operand* w,
                        const float* bias, float* y, int64_t* sums) {
    return {x, w, false, g.outputs / g.groups * w->of_n, w->of_n, false, bias, y, sums};
}

// With scales by pixel, every tap is scaled before taps are added in fp32. Exact sums are over all taps all
// the same.
Product grad_input_product(const lowbit_operand* dy, const lowbit_operand* w, float* dx, int64_t* sums) {
    return {dy, w, true, 0, w->of_c, dy->of_pixel != 0 && !sums, nullptr, dx, sums};
}

void run_convolution(const gemm::Convolution& convolution, const Product& product) {
    if (winograd::applies(convolution, product)) {
        winograd::run(convolution, product);
    } else {
        gemm::run(convolution, product);
    }
}

void forward(const lowbit_geometry& g, const lowbit_operand& x, const lowbit_operand& w, const float* bias,
             float* y, int64_t* sums) {
    if (is_depthwise(g)) return depthwise_forward(g, x, w, bias, y, sums);
    run_convolution(gemm::forward_convolution(g), forward_product(g, &x, &w, bias, y, sums));
}

bool forward_multiples(const lowbit_geometry& g, const lowbit_operand& x, const lowbit_operand& w,
                       const lowbit_multiples* multiples) {
    if (is_depthwise(g)) return false;
    const gemm::Convolution convolution = gemm::forward_convolution(g);
    Product product = forward_product(g, &x, &w, nullptr, nullptr, nullptr);
    if (!winograd::applies(convolution, product)) return false;
    product.multiples = multiples;
    return !multiples || winograd::run(convolution, product);
}

void grad_input(const lowbit_geometry& g, const lowbit_operand& dy, const lowbit_operand& w, float* dx,
                int64_t* sums) {
    if (is_depthwise(g)) return depthwise_grad_input(g, dy, w, dx, sums);
    const Product product = grad_input_product(&dy, &w, dx, sums);
    run_convolution(gemm::grad_input_convolution(g, product.sum_taps_in_fp32), product);
}

void grad_weight(const lowbit_geometry& g, const lowbit_operand& dy, const lowbit_operand& x, float* dw,
                 int64_t* sums) {
    if (is_depthwise(g)) return depthwise_grad_weight(g, dy, x, dw, sums);
    const wgrad::Plan plan(g, dy, x);
    if (winograd::applies(plan, dy)) return winograd::grad_weight(plan, dy, x, dw, sums);
    wgrad::run(plan, dy, x, dw, sums);
}

bool uses_winograd(const lowbit_geometry& g, int32_t product, const lowbit_operand* first,
                   const lowbit_operand* second) {
    if (is_depthwise(g)) return false;
    if (product == 0) {
        const Product forward = forward_product(g, first, second, nullptr, nullptr, nullptr);
        return winograd::applies(gemm::forward_convolution(g), forward);
    }
    if (product == 1) {
        const Product grad_input = grad_input_product(first, second, nullptr, nullptr);
        return winograd::applies(gemm::grad_input_convolution(g, grad_input.sum_taps_in_fp32), grad_input);
    }
    return winograd::applies(wgrad::Plan(g, *first, *second), *first);
}

int64_t multiplications(const lowbit_geometry& g, int32_t product, const lowbit_operand* first,
                        const lowbit_operand* second) {
    const gemm::Image output = gemm::forward_convolution(g).result;
    const int64_t pairs = g.batch * (g.channels / g.groups) * g.outputs;
    if (!uses_winograd(g, product, first, second)) {
        return pairs * output.height * output.width * g.kernel_h * g.kernel_w;
    }
    const winograd::Tiling tiling(1, product == 1 ? g.height : output.height,
                                  product == 1 ? g.width : output.width);
    return pairs * tiling.rows * tiling.columns * winograd::kPoints;
}

}  // namespace
}  // namespace lowbit

int lowbit_forward(const lowbit_geometry* geometry, const lowbit_operand* x, const lowbit_operand* w,
                   const float* bias, float* y, int64_t* sums) {
    return lowbit::guarded([&] { lowbit::forward(*geometry, *x, *w, bias, y, sums); });
}

int32_t lowbit_forward_multiples(const lowbit_geometry* geometry, const lowbit_operand* x,
                                 const lowbit_operand* w, const lowbit_multiples* multiples) {
    return lowbit::guarded(
        [&]() -> int32_t { return lowbit::forward_multiples(*geometry, *x, *w, multiples); });
}

int lowbit_grad_input(const lowbit_geometry* geometry, const lowbit_operand* dy, const lowbit_operand* w,
                      float* dx, int64_t* sums) {
    return lowbit::guarded([&] { lowbit::grad_input(*geometry, *dy, *w, dx, sums); });
}

int lowbit_grad_weight(const lowbit_geometry* geometry, const lowbit_operand* dy, const lowbit_operand* x,
                       float* dw, int64_t* sums) {
    return lowbit::guarded([&] { lowbit::grad_weight(*geometry, *dy, *x, dw, sums); });
}

int64_t lowbit_multiplications(const lowbit_geometry* geometry, int32_t product, const lowbit_operand* first,
                               const lowbit_operand* second) {
    return lowbit::guarded([&] { return lowbit::multiplications(*geometry, product, first, second); });
}
