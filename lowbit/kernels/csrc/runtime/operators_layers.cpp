// Convolutions, matrix products, pools and resizing in fp32; see operators.h.
//
// Every sum starts with 0 and adds product after product, in the order of input channels, kernel rows and
// kernel columns; the bias comes last.
#include "common/cpu.h"
#include "runtime/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lowbit::runtime {
namespace {

// y[i] += w * x[i * step]
LOWBIT_INLINE void add_scaled_loop(float w, const float* x, int64_t step, int64_t count, float* y) {
    if (step == 1) {
        for (int64_t i = 0; i < count; i++) y[i] += w * x[i];
    } else {
        for (int64_t i = 0; i < count; i++) y[i] += w * x[i * step];
    }
}
void add_scaled_portable(float w, const float* x, int64_t step, int64_t count, float* y) {
    add_scaled_loop(w, x, step, count, y);
}
#if LOWBIT_X86
LOWBIT_TARGET_AVX2 void add_scaled_avx2(float w, const float* x, int64_t step, int64_t count, float* y) {
    add_scaled_loop(w, x, step, count, y);
}
#endif

using AddScaled = void (*)(float, const float*, int64_t, int64_t, float*);

AddScaled add_scaled() {
#if LOWBIT_X86
    if (instruction_set() != InstructionSet::baseline) return add_scaled_avx2;
#endif
    return add_scaled_portable;
}

// Columns [first, last) of the output whose input column is inside of the image.
void inside(int64_t out, int64_t stride, int64_t shift, int64_t size, int64_t* first, int64_t* last) {
    *first = shift < 0 ? ceil_div(-shift, stride) : 0;
    *last = size - 1 - shift < 0 ? 0 : std::min(out, (size - 1 - shift) / stride + 1);
}

void check_images(const Node& node, const Arguments& in) {
    const Argument& x = need(in, 0, node);
    need_type(x, Type::float32, node);
    check(x.dims.rank == 4, node.describe() + " takes images [N, C, H, W], got " + to_string(x.dims));
}

void check_bias(const Node& node, const Arguments& in, int64_t channels) {
    if (!present(in, 2)) return;
    need_type(in[2], Type::float32, node);
    check(in[2].dims.count() == channels, node.describe() + ": the bias does not fit");
}

void infer_conv(const Node& node, const Arguments& in, Arguments& out) {
    check_images(node, in);
    const Dims &x = in[0].dims, &w = need(in, 1, node).dims;
    need_type(in[1], Type::float32, node);
    const int64_t groups = node.i("group", 1);
    check(w.rank == 4 && groups > 0 && w.count() > 0 && w[0] % groups == 0 && x[1] % groups == 0 &&
              w[1] == x[1] / groups,
          node.describe() + ": weights " + to_string(w) + " do not fit images " + to_string(x));
    check_bias(node, in, w[0]);
    const Window window = window_of(node, x, w.size + 2);
    out[0].type = Type::float32, out[0].dims = {x[0], w[0], window.out[0], window.out[1]};
    check_dims(out[0].dims, node.describe());
}

void run_conv(const Node& node, const Views& in, const Views& out, ThreadPool& pool) {
    const Dims &x = in[0].dims, &w = in[1].dims, &y = out[0].dims;
    const Window win = window_of(node, x, w.size + 2);
    const int64_t groups = node.i("group", 1), per_group = w[0] / groups;
    const AddScaled add = add_scaled();
    pool.parallel_for(y[0] * y[1], [&](int64_t plane) {
        const int64_t n = plane / y[1], o = plane % y[1], g = o / per_group;
        float* to = out[0].as<float>() + plane * y[2] * y[3];
        const float* weights = in[1].as<float>() + o * w[1] * w[2] * w[3];
        for (int64_t row = 0; row < y[2]; row++, to += y[3]) {
            std::fill(to, to + y[3], 0.0f);
            const float* weight = weights;
            for (int64_t c = 0; c < w[1]; c++) {
                const float* image = in[0].as<float>() + (n * x[1] + g * w[1] + c) * x[2] * x[3];
                for (int64_t i = 0; i < w[2]; i++) {
                    const int64_t h = row * win.stride[0] + i * win.dilation[0] - win.pad_before[0];
                    for (int64_t j = 0; j < w[3]; j++, weight++) {
                        if (h < 0 || h >= x[2]) continue;
                        const int64_t shift = j * win.dilation[1] - win.pad_before[1];
                        int64_t first, last;
                        inside(y[3], win.stride[1], shift, x[3], &first, &last);
                        if (first >= last) continue;
                        add(*weight, image + h * x[3] + first * win.stride[1] + shift, win.stride[1],
                            last - first, to + first);
                    }
                }
            }
            if (!present(in, 2)) continue;
            const float bias = in[2].as<float>()[o];
            for (int64_t i = 0; i < y[3]; i++) to[i] += bias;
        }
    });
}

// ---- ConvTranspose: the weight is [in, out / groups, kernel, kernel].

Window transposed_window(const Node& node, const Dims& x, const Dims& w) {
    Window win{};
    const std::vector<int64_t> strides = node.ints("strides"), dilations = node.ints("dilations");
    const std::vector<int64_t> pads = node.ints("pads"), more = node.ints("output_padding");
    check(!node.has("output_shape") && node.s("auto_pad", "NOTSET") == "NOTSET",
          node.describe() + ": output_shape and auto_pad are not supported");
    check((strides.empty() || strides.size() == 2) && (dilations.empty() || dilations.size() == 2) &&
              (pads.empty() || pads.size() == 4) && (more.empty() || more.size() == 2),
          node.describe() + ": strides, dilations or pads do not fit images");
    for (int axis = 0; axis < 2; axis++) {
        win.kernel[axis] = w[2 + axis];
        win.stride[axis] = strides.empty() ? 1 : strides[axis];
        win.dilation[axis] = dilations.empty() ? 1 : dilations[axis];
        win.pad_before[axis] = pads.empty() ? 0 : pads[axis];
        win.pad_after[axis] = pads.empty() ? 0 : pads[2 + axis];
        for (int64_t one : {win.stride[axis], win.dilation[axis], win.kernel[axis]}) {
            check(one > 0 && one < (1 << 20), node.describe() + ": strides or dilations are impossible");
        }
        const int64_t extra = more.empty() ? 0 : more[axis];
        for (int64_t one : {win.pad_before[axis], win.pad_after[axis], extra}) {
            check(one >= 0 && one < (1 << 20), node.describe() + ": pads are impossible");
        }
        win.out[axis] = (x[2 + axis] - 1) * win.stride[axis] + (win.kernel[axis] - 1) * win.dilation[axis] +
                        1 - win.pad_before[axis] - win.pad_after[axis] + extra;
        check(win.out[axis] > 0, node.describe() + ": nothing is left of the images");
    }
    return win;
}

void infer_conv_transpose(const Node& node, const Arguments& in, Arguments& out) {
    check_images(node, in);
    const Dims &x = in[0].dims, &w = need(in, 1, node).dims;
    need_type(in[1], Type::float32, node);
    const int64_t groups = node.i("group", 1);
    check(w.rank == 4 && groups > 0 && groups <= x[1] && w[0] == x[1] && x[1] % groups == 0 &&
              w.count() > 0 && x.count() > 0,
          node.describe() + ": weights " + to_string(w) + " do not fit images " + to_string(x));
    check_bias(node, in, w[1] * groups);
    const Window window = transposed_window(node, x, w);
    out[0].type = Type::float32, out[0].dims = {x[0], w[1] * groups, window.out[0], window.out[1]};
    check_dims(out[0].dims, node.describe());
}

void run_conv_transpose(const Node& node, const Views& in, const Views& out, ThreadPool& pool) {
    const Dims &x = in[0].dims, &w = in[1].dims, &y = out[0].dims;
    const Window win = transposed_window(node, x, w);
    const int64_t groups = node.i("group", 1), inputs = x[1] / groups;
    pool.parallel_for(y[0] * y[1], [&](int64_t plane) {
        const int64_t n = plane / y[1], o = plane % y[1], g = o / w[1];
        float* to = out[0].as<float>() + plane * y[2] * y[3];
        std::fill(to, to + y[2] * y[3], 0.0f);
        for (int64_t c = g * inputs; c < (g + 1) * inputs; c++) {
            const float* image = in[0].as<float>() + (n * x[1] + c) * x[2] * x[3];
            const float* weight = in[1].as<float>() + (c * w[1] + o % w[1]) * w[2] * w[3];
            for (int64_t i = 0; i < w[2]; i++) {
                for (int64_t j = 0; j < w[3]; j++, weight++) {
                    for (int64_t h = 0; h < x[2]; h++) {
                        const int64_t row = h * win.stride[0] + i * win.dilation[0] - win.pad_before[0];
                        if (row < 0 || row >= y[2]) continue;
                        for (int64_t v = 0; v < x[3]; v++) {
                            const int64_t column =
                                v * win.stride[1] + j * win.dilation[1] - win.pad_before[1];
                            if (column >= 0 && column < y[3])
                                to[row * y[3] + column] += *weight * image[h * x[3] + v];
                        }
                    }
                }
            }
        }
        if (!present(in, 2)) return;
        for (int64_t i = 0; i < y[2] * y[3]; i++) to[i] += in[2].as<float>()[o];
    });
}

// ---- Matrix products.

void infer_matmul(const Node& node, const Arguments& in, Arguments& out) {
    const Dims &a = need(in, 0, node).dims, &b = need(in, 1, node).dims;
    need_type(in[0], Type::float32, node);
    need_type(in[1], Type::float32, node);
    check(a.rank >= 2 && b.rank >= 2 && a[a.rank - 1] == b[b.rank - 2],
          node.describe() + " cannot multiply " + to_string(a) + " and " + to_string(b));
    Dims first = a, second = b;
    first.rank -= 2, second.rank -= 2;
    out[0].type = Type::float32, out[0].dims = broadcast(first, second, node);
    out[0].dims.push(a[a.rank - 2]);
    out[0].dims.push(b[b.rank - 1]);
    check_dims(out[0].dims, node.describe());
}

void run_matmul(const Node&, const Views& in, const Views& out, ThreadPool& pool) {
    const Dims &a = in[0].dims, &b = in[1].dims, &y = out[0].dims;
    const int64_t rows = y[y.rank - 2], columns = y[y.rank - 1], inner = a[a.rank - 1];
    const AddScaled add = add_scaled();
    pool.parallel_for(y.product(0, y.rank - 1), [&](int64_t item) {
        const int64_t matrix = item / rows, row = item % rows;
        const float* left = in[0].as<float>() + (broadcast_matrix(matrix, y, a) * rows + row) * inner;
        const float* right = in[1].as<float>() + broadcast_matrix(matrix, y, b) * inner * columns;
        float* to = out[0].as<float>() + item * columns;
        std::fill(to, to + columns, 0.0f);
        for (int64_t k = 0; k < inner; k++) add(left[k], right + k * columns, 1, columns, to);
    });
}

void infer_gemm(const Node& node, const Arguments& in, Arguments& out) {
    const Dims &a = need(in, 0, node).dims, &b = need(in, 1, node).dims;
    need_type(in[0], Type::float32, node);
    need_type(in[1], Type::float32, node);
    check(a.rank == 2 && b.rank == 2, node.describe() + " takes matrices");
    const int64_t rows = a[node.i("transA", 0) ? 1 : 0], inner = a[node.i("transA", 0) ? 0 : 1];
    const int64_t columns = b[node.i("transB", 0) ? 0 : 1];
    check(b[node.i("transB", 0) ? 1 : 0] == inner,
          node.describe() + " cannot multiply " + to_string(a) + " and " + to_string(b));
    out[0].type = Type::float32, out[0].dims = {rows, columns};
    check_dims(out[0].dims, node.describe());
    if (!present(in, 2)) return;
    need_type(in[2], Type::float32, node);
    check(broadcast(out[0].dims, in[2].dims, node) == out[0].dims,
          node.describe() + ": the bias does not fit");
}

void run_gemm(const Node& node, const Views& in, const Views& out, ThreadPool& pool) {
    const bool transposed_a = node.i("transA", 0), transposed_b = node.i("transB", 0);
    const int64_t rows = out[0].dims[0], columns = out[0].dims[1], inner = in[0].dims[transposed_a ? 0 : 1];
    const float alpha = node.f("alpha", 1), beta = node.f("beta", 1);
    const float* b = in[1].as<float>();
    const AddScaled add = add_scaled();
    pool.parallel_for(rows, [&](int64_t row) {
        float* to = out[0].as<float>() + row * columns;
        std::fill(to, to + columns, 0.0f);
        for (int64_t k = 0; k < inner; k++) {
            const float left = in[0].as<float>()[transposed_a ? k * rows + row : row * inner + k];
            if (transposed_b) {
                add(left, b + k, inner, columns, to);
            } else {
                add(left, b + k * columns, 1, columns, to);
            }
        }
        for (int64_t i = 0; i < columns; i++) {
            to[i] *= alpha;
            if (!present(in, 2)) continue;
            const Dims& c = in[2].dims;
            const int64_t across = c.rank > 0 && c[c.rank - 1] > 1 ? i : 0;
            const int64_t down = c.rank > 1 && c[0] > 1 ? row * c[1] : 0;
            to[i] += in[2].as<float>()[down + across] * beta;
        }
    });
}

// ---- Pools.

void infer_pool(const Node& node, const Arguments& in, Arguments& out) {
    check_images(node, in);
    check(out.size() == 1, node.describe() + ": indices are not supported");
    const Window window = window_of(node, in[0].dims, nullptr);
    out[0].type = Type::float32, out[0].dims = {in[0].dims[0], in[0].dims[1], window.out[0], window.out[1]};
    check_dims(out[0].dims, node.describe());
}

void run_pool(const Node& node, const Views& in, const Views& out, ThreadPool& pool) {
    const Dims &x = in[0].dims, &y = out[0].dims;
    const Window win = window_of(node, x, nullptr);
    const bool mean = node.kind == "AveragePool", count_pads = node.i("count_include_pad", 0);
    pool.parallel_for(y[0] * y[1], [&](int64_t plane) {
        const float* image = in[0].as<float>() + plane * x[2] * x[3];
        float* to = out[0].as<float>() + plane * y[2] * y[3];
        for (int64_t i = 0; i < y[2] * y[3]; i++) {
            const int64_t top = i / y[3] * win.stride[0] - win.pad_before[0];
            const int64_t left = i % y[3] * win.stride[1] - win.pad_before[1];
            double sum = 0;
            float best = -std::numeric_limits<float>::infinity();
            int64_t count = 0;
            for (int64_t r = 0; r < win.kernel[0]; r++) {
                for (int64_t c = 0; c < win.kernel[1]; c++) {
                    const int64_t h = top + r * win.dilation[0], w = left + c * win.dilation[1];
                    const bool is_inside = h >= 0 && h < x[2] && w >= 0 && w < x[3];
                    const bool is_pad = h < x[2] + win.pad_after[0] && w < x[3] + win.pad_after[1];
                    count += is_inside || (count_pads && is_pad);
                    if (!is_inside) continue;
                    const float value = image[h * x[3] + w];
                    sum += value;
                    best = value > best ? value : best;
                }
            }
            to[i] = mean ? static_cast<float>(sum / static_cast<double>(std::max<int64_t>(count, 1))) : best;
        }
    });
}

}  // namespace

Window window_of(const Node& node, const Dims& image, const int64_t* kernel) {
    Window win{};
    const std::vector<int64_t> shape = node.ints("kernel_shape"), strides = node.ints("strides");
    const std::vector<int64_t> dilations = node.ints("dilations"), pads = node.ints("pads");
    check((kernel || shape.size() == 2) && (strides.empty() || strides.size() == 2) &&
              (dilations.empty() || dilations.size() == 2) && (pads.empty() || pads.size() == 4),
          node.describe() + ": its kernel, strides, dilations or pads do not fit images");
    const std::string automatic = node.s("auto_pad", "NOTSET");
    for (int axis = 0; axis < 2; axis++) {
        const int64_t size = image[2 + axis];
        win.kernel[axis] = kernel ? kernel[axis] : shape[axis];
        win.stride[axis] = strides.empty() ? 1 : strides[axis];
        win.dilation[axis] = dilations.empty() ? 1 : dilations[axis];
        win.pad_before[axis] = pads.empty() ? 0 : pads[axis];
        win.pad_after[axis] = pads.empty() ? 0 : pads[2 + axis];
        for (int64_t one : {win.kernel[axis], win.stride[axis], win.dilation[axis]}) {
            check(one > 0 && one < (1 << 20),
                  node.describe() + ": its kernel, strides or dilations are impossible");
        }
        for (int64_t one : {win.pad_before[axis], win.pad_after[axis]}) {
            check(one >= 0 && one < (1 << 20), node.describe() + ": its pads are impossible");
        }
        const int64_t reach = (win.kernel[axis] - 1) * win.dilation[axis] + 1;
        if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
            const int64_t out = ceil_div(size, win.stride[axis]);
            const int64_t all = std::max<int64_t>((out - 1) * win.stride[axis] + reach - size, 0);
            win.pad_before[axis] = automatic == "SAME_UPPER" ? all / 2 : all - all / 2;
            win.pad_after[axis] = all - win.pad_before[axis];
        } else {
            check(automatic == "NOTSET" || automatic == "VALID", node.describe() + ": unknown auto_pad");
        }
        const int64_t room = size + win.pad_before[axis] + win.pad_after[axis] - reach;
        check(room >= 0, node.describe() + ": its kernel is larger than the padded image");
        win.out[axis] = room / win.stride[axis] + 1;
        if (node.i("ceil_mode", 0)) {
            win.out[axis] = ceil_div(room, win.stride[axis]) + 1;
            // A window that would start in the padding behind the image is left out.
            if ((win.out[axis] - 1) * win.stride[axis] >= size + win.pad_before[axis]) win.out[axis]--;
        }
    }
    return win;
}

void add_layers(Table& table) {
    table["Conv"] = {infer_conv, run_conv};
    table["ConvTranspose"] = {infer_conv_transpose, run_conv_transpose};
    table["MatMul"] = {infer_matmul, run_matmul};
    table["Gemm"] = {infer_gemm, run_gemm};
    table["MaxPool"] = table["AveragePool"] = {infer_pool, run_pool};
}

}  // namespace lowbit::runtime
