// Reductions, softmax and norms; shared helpers and the table of all operators. See operators.h.
#include "runtime/operators.h"

#include <algorithm>
#include <cmath>

namespace lowbit::runtime {
namespace {

// The reduced axes as a mask; all axes without any.
void reduced_axes(const Node& node, const std::vector<int64_t>& axes, int rank, bool* reduced) {
    for (int64_t axis : axes) reduced[resolve_axis(axis, rank, node.describe())] = true;
    if (axes.empty() && !node.i("noop_with_empty_axes", 0)) std::fill(reduced, reduced + rank, true);
}

Dims reduce_dims(const Node& node, const Dims& dims, const bool* reduced) {
    Dims kept;
    for (int axis = 0; axis < dims.rank; axis++) {
        if (!reduced[axis]) {
            kept.push(dims[axis]);
        } else if (node.i("keepdims", 1)) {
            kept.push(1);
        }
    }
    return kept;
}

void infer_reduce(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    need_type(x, Type::float32, node);
    check(x.dims.count() > 0, node.describe() + " of nothing");
    bool reduced[kMaxRank] = {};
    const bool as_input = present(in, 1);
    reduced_axes(node, as_input ? constant_ints(in, 1, node) : node.ints("axes"), x.dims.rank, reduced);
    out[0].type = x.type, out[0].dims = reduce_dims(node, x.dims, reduced);
}

struct Reduction {
    Dims outer, inner;  // kept and reduced axes, with their steps
    int64_t outer_step[kMaxRank] = {}, inner_step[kMaxRank] = {};
};

Reduction reduction_of(const Dims& dims, const bool* reduced) {
    Reduction found;
    int64_t step[kMaxRank] = {}, size = 1;
    for (int axis = dims.rank - 1; axis >= 0; axis--) step[axis] = size, size *= dims[axis];
    for (int axis = 0; axis < dims.rank; axis++) {
        if (reduced[axis]) {
            found.inner_step[found.inner.rank] = step[axis];
            found.inner.push(dims[axis]);
        } else {
            found.outer_step[found.outer.rank] = step[axis];
            found.outer.push(dims[axis]);
        }
    }
    return found;
}

int64_t offset_at(int64_t index, const Dims& dims, const int64_t* step) {
    int64_t offset = 0;
    for (int axis = dims.rank - 1; axis >= 0; axis--)
        offset += index % dims[axis] * step[axis], index /= dims[axis];
    return offset;
}

void reduce(const Node& node, const View& x, const View& y, const bool* reduced) {
    const Reduction plan = reduction_of(x.dims, reduced);
    const int64_t count = plan.inner.count();
    const bool largest = node.kind == "ReduceMax" || node.kind == "GlobalMaxPool",
               smallest = node.kind == "ReduceMin";
    const bool mean = node.kind == "ReduceMean" || node.kind == "GlobalAveragePool";
    for (int64_t i = 0, outputs = plan.outer.count(); i < outputs; i++) {
        const float* from = x.as<float>() + offset_at(i, plan.outer, plan.outer_step);
        double sum = 0;
        float best = from[0];
        for (int64_t j = 0; j < count; j++) {
            const float value = from[offset_at(j, plan.inner, plan.inner_step)];
            if (largest) best = value > best ? value : best;
            if (smallest) best = value < best ? value : best;
            sum += value;
        }
        y.as<float>()[i] =
            largest || smallest ? best : static_cast<float>(mean ? sum / static_cast<double>(count) : sum);
    }
}

void run_reduce(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    bool reduced[kMaxRank] = {};
    std::vector<int64_t> axes = node.ints("axes");
    if (present(in, 1)) axes.assign(in[1].as<int64_t>(), in[1].as<int64_t>() + in[1].count());
    reduced_axes(node, axes, in[0].dims.rank, reduced);
    reduce(node, in[0], out[0], reduced);
}

void infer_global(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    need_type(x, Type::float32, node);
    check(x.dims.rank > 2 && x.dims.count() > 0, node.describe() + " takes images [N, C, H, W]");
    out[0].type = x.type, out[0].dims = x.dims;
    for (int axis = 2; axis < x.dims.rank; axis++) out[0].dims[axis] = 1;
}

void run_global(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    bool reduced[kMaxRank] = {};
    for (int axis = 2; axis < in[0].dims.rank; axis++) reduced[axis] = true;
    reduce(node, in[0], out[0], reduced);
}

void infer_float(const Node& node, const Arguments& in, Arguments& out) {
    need_type(need(in, 0, node), Type::float32, node);
    out[0].type = Type::float32, out[0].dims = in[0].dims;
}

void infer_softmax(const Node& node, const Arguments& in, Arguments& out) {
    infer_float(node, in, out);
    resolve_axis(node.i("axis", -1), in[0].dims.rank, node.describe());
}

void run_softmax(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const Dims& dims = in[0].dims;
    const int axis = resolve_axis(node.i("axis", -1), dims.rank, node.describe());
    const int64_t inner = dims.product(axis + 1, dims.rank), size = dims.rank ? dims[axis] : 1;
    const int64_t outer = dims.product(0, axis);
    for (int64_t i = 0; i < outer * inner && size; i++) {
        const int64_t start = i / inner * size * inner + i % inner;
        const float* x = in[0].as<float>() + start;
        float* y = out[0].as<float>() + start;
        float highest = x[0];
        for (int64_t j = 1; j < size; j++) highest = x[j * inner] > highest ? x[j * inner] : highest;
        double sum = 0;
        for (int64_t j = 0; j < size; j++) sum += std::exp(static_cast<double>(x[j * inner]) - highest);
        for (int64_t j = 0; j < size; j++) {
            y[j * inner] = static_cast<float>(std::exp(static_cast<double>(x[j * inner]) - highest) / sum);
        }
    }
}

void infer_layer_norm(const Node& node, const Arguments& in, Arguments& out) {
    infer_float(node, in, out);
    check(out.size() == 1, node.describe() + ": only its first output is supported");
    const int axis = resolve_axis(node.i("axis", -1), in[0].dims.rank, node.describe());
    const int64_t inner = in[0].dims.product(axis, in[0].dims.rank);
    for (size_t i = 1; i < 3 && (i == 1 || present(in, 2)); i++) {
        need_type(need(in, i, node), Type::float32, node);
        check(in[i].dims.count() == inner, node.describe() + ": its weights do not fit");
    }
}

void run_layer_norm(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const Dims& dims = in[0].dims;
    const int axis = resolve_axis(node.i("axis", -1), dims.rank, node.describe());
    const int64_t inner = dims.product(axis, dims.rank), outer = dims.product(0, axis);
    const double epsilon = node.f("epsilon", 1e-5f);
    for (int64_t i = 0; i < outer && inner; i++) {
        const float* x = in[0].as<float>() + i * inner;
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < inner; j++) sum += x[j];
        const double mean = sum / static_cast<double>(inner);
        for (int64_t j = 0; j < inner; j++) squares += (x[j] - mean) * (x[j] - mean);
        const double scale = 1 / std::sqrt(squares / static_cast<double>(inner) + epsilon);
        for (int64_t j = 0; j < inner; j++) {
            const double bias = present(in, 2) ? in[2].as<float>()[j] : 0.0f;
            out[0].as<float>()[i * inner + j] =
                static_cast<float>((x[j] - mean) * scale * in[1].as<float>()[j] + bias);
        }
    }
}

void infer_batch_norm(const Node& node, const Arguments& in, Arguments& out) {
    infer_float(node, in, out);
    check(in[0].dims.rank >= 2, node.describe() + " takes [N, C, ...]");
    for (size_t i = 1; i < 5; i++) {
        need_type(need(in, i, node), Type::float32, node);
        check(in[i].dims.count() == in[0].dims[1], node.describe() + ": its weights do not fit");
    }
    check(out.size() == 1, node.describe() + ": only its first output is supported");
}

void run_batch_norm(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const int64_t channels = in[0].dims[1], inner = in[0].dims.product(2, in[0].dims.rank);
    for (int64_t i = 0; i < in[0].dims[0] * channels; i++) {
        const int64_t c = i % channels;
        const double variance = in[4].as<float>()[c], epsilon = node.f("epsilon", 1e-5f);
        const float scale = static_cast<float>(in[1].as<float>()[c] / std::sqrt(variance + epsilon));
        const float mean = in[3].as<float>()[c], bias = in[2].as<float>()[c];
        for (int64_t j = i * inner; j < (i + 1) * inner; j++) {
            out[0].as<float>()[j] = (in[0].as<float>()[j] - mean) * scale + bias;
        }
    }
}

}  // namespace

void add_reductions(Table& table) {
    for (const char* kind : {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"}) {
        table[kind] = {infer_reduce, run_reduce};
    }
    table["GlobalAveragePool"] = table["GlobalMaxPool"] = {infer_global, run_global};
    table["Softmax"] = {infer_softmax, run_softmax};
    table["LayerNormalization"] = {infer_layer_norm, run_layer_norm};
    table["BatchNormalization"] = {infer_batch_norm, run_batch_norm};
}

}  // namespace lowbit::runtime
