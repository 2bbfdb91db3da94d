// Where Winograd's transforms are exact and pay; see winograd.h.
#include "winograd.h"

#include "layout.h"
#include "winograd_rows.h"
#include "winograd_tiles.h"

#include <algorithm>
#include <cstdlib>

namespace lowbit::winograd {
namespace {

constexpr int64_t kFewChannels = 16;  // fewer than these, and the transforms take longer than what they save

int64_t largest_of(const lowbit_operand& operand) {
    return std::max<int64_t>(1, std::max(std::abs(operand.lowest), std::abs(operand.highest)));
}

// Tiles stand over where a size is odd: what is multiplied must be clearly less all the same.
bool saves(int64_t rows, int64_t columns) {
    const Tiling tiling(1, rows, columns);
    return tiling.rows * tiling.columns * kPoints * 5 < rows * columns * kTaps * 4;
}

bool is_three_by_three(const conv::Convolution& convolution) {
    if (convolution.groups != 1 || convolution.parts.size() != 1 || convolution.kernel != kTaps) return false;
    const conv::Part& part = convolution.parts[0];
    if (part.step_h != 1 || part.step_w != 1 || part.apart_h != 1 || part.apart_w != 1) return false;
    for (const conv::Tap& tap : part.taps) {
        const int64_t row = tap.row + convolution.above, column = tap.column + convolution.before;
        if (row < 0 || row > 2 || column < 0 || column > 2) return false;
    }
    return true;
}

}  // namespace

bool fits(const conv::Convolution& convolution, const conv::Product& product) {
    if (product.by_tap || !is_three_by_three(convolution)) return false;
    const int64_t source = largest_of(*product.source), weight = largest_of(*product.weight);
    const conv::Layout direct(convolution, *product.source, *product.weight);
    if (direct.packed == conv::Packed::bytes && instruction_set() != InstructionSet::baseline) return false;
    const int64_t channels = convolution.source.channels;
    if (std::min(channels, convolution.result.channels) < kFewChannels) return false;
    // A point of the source is four pixels at most, one of the kernel nine taps; two such sums are added.
    return 2 * channels * 4 * source * kTaps * weight <= INT32_MAX &&
           saves(convolution.result.height, convolution.result.width);
}

int64_t tiles_in_int32(const lowbit_operand& dy, const lowbit_operand& x) {
    // A point is four pixels at most, of either; two such sums are added.
    return INT32_MAX / (2 * 4 * largest_of(dy) * 4 * largest_of(x));
}

bool fits(const weight::WeightPlan& plan, const lowbit_operand& dy, const lowbit_operand& x) {
    const lowbit_geometry& g = plan.g;
    if (g.groups != 1 || g.kernel_h != 3 || g.kernel_w != 3 || g.stride_h != 1 || g.stride_w != 1) return false;
    if (g.dilation_h != 1 || g.dilation_w != 1 || std::min(g.channels, g.outputs) < kFewChannels) return false;
    if (plan.by_sample || plan.route != weight::Route::pairs) return false;
    return Tiling(1, plan.out_h, plan.out_w).columns <= tiles_in_int32(dy, x) && saves(plan.out_h, plan.out_w);
}

}  // namespace lowbit::winograd
