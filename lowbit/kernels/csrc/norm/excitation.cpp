// See excitation.h. The loops over few elements are portable: they take no time.
#include "norm/excitation.h"

#include "gemm/gemm.h"
#include "norm/norm.h"

#include <vector>

namespace lowbit {
namespace {

// The memory of lowbit_excitation by what it holds.
struct State {
    int64_t wide, narrow;  // elements
    float *hidden, *mean, *output, *gate, *factor;
    uint8_t *input1, *input2;
    int8_t *clipped1, *clipped2, *clipped_output, *clipped_gate;

    explicit State(const lowbit_excitation& of)
        : wide(of.images * of.channels), narrow(of.images * of.hidden) {
        hidden = of.floats, mean = hidden + narrow, output = mean + wide;
        gate = output + wide, factor = gate + wide;
        input1 = of.bytes, input2 = input1 + wide;
        clipped1 = reinterpret_cast<int8_t*>(input2 + narrow), clipped2 = clipped1 + wide;
        clipped_output = clipped2 + narrow, clipped_gate = clipped_output + wide;
    }
};

// A moving average as it was.
struct Snapshot {
    lowbit_moving_average of;
    float state, accum, range;
    int64_t entered, left_out;

    explicit Snapshot(const lowbit_moving_average& average)
        : of(average),
          state(*average.state),
          accum(*average.accum),
          range(*average.range),
          entered(*average.entered),
          left_out(*average.left_out) {}

    void restore() const {
        *of.state = state, *of.accum = accum, *of.range = range;
        *of.entered = entered, *of.left_out = left_out;
    }
};

// W * the integers of x + b, for rows of x; x and w are their counts per row.
void multiply(const lowbit_gate_layer& layer, const uint8_t* x, int64_t rows, int64_t inputs, int64_t outputs,
              float* y) {
    const lowbit_geometry geometry = {rows, inputs, 1, 1, outputs, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1};
    const lowbit_grid grid = layer.input->grid;
    const lowbit_operand input = {x, int32_t(grid.lowest), int32_t(grid.highest), layer.input->scale, 0, 0,
                                  0};
    const lowbit_operand weight = {layer.weight, -layer.highest, layer.highest, layer.scales, 1, 0, 0};
    checked(lowbit_forward(&geometry, &input, &weight, layer.bias, y, nullptr));
}

// Rows of integers times their scales: one each, or one for all.
void values_of(const void* integers, bool is_signed, const float* scales, bool by_row, int64_t rows,
               int64_t count, float* values) {
    const lowbit_axes axes = {{rows, count, 1, 1}, {by_row, 0, 0, 0}};
    checked(lowbit_from_integers(integers, values, scales, &axes, is_signed));
}

void sum_rows(const float* x, int64_t rows, int64_t count, float* sums) {
    for (int64_t i = 0; i < count; ++i) sums[i] = 0;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < count; ++i) sums[i] += x[row * count + i];
    }
}

bool has_nan(const float* x, int64_t count) {
    bool found = false;
    for (int64_t i = 0; i < count; ++i) found |= x[i] != x[i];
    return found;
}

constexpr float kSlope = 0.1666667f, kOffset = 0.5f;  // Paddle's hard sigmoid

bool forward(const lowbit_excitation& of, const float* x, float* y) {
    const State to(of);
    checked(lowbit_channel_mean_forward(x, to.mean, to.wide, of.inner));
    int64_t nan_count =
        checked(lowbit_observe_and_mark(to.mean, nullptr, to.input1, to.clipped1, to.wide, of.first.input));
    multiply(of.first, to.input1, of.images, of.channels, of.hidden, to.hidden);
    // A ReLU makes 0 of NaN.
    if (has_nan(to.hidden, to.narrow)) return false;
    for (int64_t i = 0; i < to.narrow; ++i) to.hidden[i] = to.hidden[i] > 0 ? to.hidden[i] : 0.0f;
    nan_count += checked(
        lowbit_observe_and_mark(to.hidden, nullptr, to.input2, to.clipped2, to.narrow, of.second.input));
    float* output = of.output ? to.mean : to.output;  // nobody needs the mean any more
    multiply(of.second, to.input2, of.images, of.hidden, of.channels, output);
    if (has_nan(output, to.wide)) return false;
    if (of.output) {
        nan_count += checked(
            lowbit_observe_and_mark(output, to.output, nullptr, to.clipped_output, to.wide, of.output));
    }
    for (int64_t i = 0; i < to.wide; ++i) {
        const float value = to.output[i] * kSlope + kOffset, positive = value < 0 ? 0.0f : value;
        to.gate[i] = positive > 1.0f ? 1.0f : positive;
    }
    const float* factor = to.gate;
    if (of.gate) {
        nan_count +=
            checked(lowbit_observe_and_mark(to.gate, to.factor, nullptr, to.clipped_gate, to.wide, of.gate));
        factor = to.factor;
    }
    if (nan_count) return false;
    checked(lowbit_channel_product_forward(x, factor, y, to.wide, of.inner));
    return true;
}

}  // namespace
}  // namespace lowbit

using lowbit::checked;

int32_t lowbit_excitation_forward(const lowbit_excitation* of, const float* x, float* y) {
    return lowbit::guarded([&]() -> int32_t {
        std::vector<lowbit::Snapshot> before;
        for (const lowbit_observer* one : {of->first.input, of->second.input, of->output, of->gate}) {
            if (one) before.emplace_back(one->average);
        }
        const bool done = lowbit::forward(*of, x, y);
        for (const lowbit::Snapshot& one : before) {
            if (!done) one.restore();
        }
        return done;
    });
}

int lowbit_excitation_backward_gate(const lowbit_excitation* of, const float* x, const float* dy, float* dx,
                                    float* doutput, float* weight, float* input, float* dbias,
                                    float* doutput_alpha, float* dgate_alpha) {
    return lowbit::guarded([&] {
        const lowbit::State kept(*of);
        const float* factor = of->gate ? kept.factor : kept.gate;
        checked(lowbit_channel_product_backward(x, factor, dy, dx, doutput, kept.wide, of->inner));
        if (of->gate) {
            checked(lowbit_marked_grad(doutput, kept.clipped_gate, doutput, dgate_alpha, kept.wide));
        }
        for (int64_t i = 0; i < kept.wide; ++i) {
            const float inside = (kept.gate[i] > 0) & (kept.gate[i] < 1.0f) ? 1.0f : 0.0f;
            doutput[i] = doutput[i] * inside * lowbit::kSlope;
        }
        if (of->output) {
            checked(lowbit_marked_grad(doutput, kept.clipped_output, doutput, doutput_alpha, kept.wide));
        }
        if (dbias) lowbit::sum_rows(doutput, of->images, of->channels, dbias);
        const lowbit_observer& by = *of->second.input;
        lowbit::values_of(of->second.weight, true, of->second.scales, true, of->channels, of->hidden, weight);
        lowbit::values_of(kept.input2, by.grid.is_signed, by.scale, false, of->images, of->hidden, input);
    });
}

int lowbit_excitation_backward_hidden(const lowbit_excitation* of, float* doutput, float* weight,
                                      float* input, float* dbias, float* dalpha) {
    return lowbit::guarded([&] {
        const lowbit::State kept(*of);
        checked(lowbit_marked_grad(doutput, kept.clipped2, doutput, dalpha, kept.narrow));
        for (int64_t i = 0; i < kept.narrow; ++i) doutput[i] *= kept.hidden[i] > 0 ? 1.0f : 0.0f;
        if (dbias) lowbit::sum_rows(doutput, of->images, of->hidden, dbias);
        const lowbit_observer& by = *of->first.input;
        lowbit::values_of(of->first.weight, true, of->first.scales, true, of->hidden, of->channels, weight);
        lowbit::values_of(kept.input1, by.grid.is_signed, by.scale, false, of->images, of->channels, input);
    });
}

int lowbit_excitation_backward_mean(const lowbit_excitation* of, float* dmean, float* dx, float* dalpha) {
    return lowbit::guarded([&] {
        const lowbit::State kept(*of);
        checked(lowbit_marked_grad(dmean, kept.clipped1, dmean, dalpha, kept.wide));
        checked(lowbit_channel_mean_add(dmean, dx, kept.wide, of->inner));
    });
}
