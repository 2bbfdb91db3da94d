// The C interface of forward and grad_input; see products.h.
#include "products.h"

#include "depthwise.h"
#include "driver.h"
#include "winograd.h"

#include <new>

namespace {

void multiply(const lowbit::conv::Convolution& convolution, const lowbit::conv::Product& product) {
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
        const int64_t outputs = geometry->outputs / geometry->groups;
        multiply(lowbit::conv::forward_of(*geometry),
                 {x, w, false, outputs * w->of_n, w->of_n, false, bias, y, sums});
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
        const bool by_tap = dy->of_pixel != 0 && !sums;  // sums are over all taps
        multiply(lowbit::conv::grad_input_of(*geometry, by_tap),
                 {dy, w, true, 0, w->of_c, by_tap, nullptr, dx, sums});
    } catch (const std::bad_alloc&) {
        return -1;
    }
    return 0;
}
