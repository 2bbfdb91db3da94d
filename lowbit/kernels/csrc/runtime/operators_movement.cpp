// Operators that move values and change shapes, for elements of any type; see operators.h.
#include "runtime/operators.h"

#include <algorithm>

namespace lowbit::runtime {
namespace {

void copy_all(const Node&, const Views& in, const Views& out, ThreadPool&) {
    const size_t bytes = static_cast<size_t>(out[0].count() * type_bytes(out[0].type));
    if (bytes) memcpy(out[0].data, in[0].data, bytes);
}

void finish(const Node& node, const Argument& x, const Dims& dims, Arguments& out) {
    check_dims(dims, node.describe());
    check(dims.count() == x.dims.count(),
          node.describe() + " cannot make " + to_string(dims) + " of " + to_string(x.dims));
    out[0].type = x.type, out[0].dims = dims;
}

void infer_reshape(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    Dims dims;
    int open = -1;
    int64_t known = 1;
    for (int64_t size : constant_ints(in, 1, node)) {
        if (size == 0 && !node.i("allowzero", 0)) {
            check(dims.rank < x.dims.rank, node.describe() + " keeps a dimension that is not there");
            size = x.dims[dims.rank];
        }
        if (size == -1) {
            check(open < 0, node.describe() + " leaves two dimensions open");
            open = dims.rank;
        } else {
            check(size >= 0 && size <= kMaxElements && (known *= size) <= kMaxElements,
                  node.describe() + " has impossible sizes");
        }
        dims.push(size);
    }
    if (open >= 0) dims[open] = known ? x.dims.count() / known : 0;
    finish(node, x, dims, out);
}

void infer_flatten(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    int64_t axis = node.i("axis", 1);
    check(axis >= -x.dims.rank && axis <= x.dims.rank,
          node.describe() + ": the axis is outside of the tensor");
    if (axis < 0) axis += x.dims.rank;
    const int split = static_cast<int>(axis);
    finish(node, x, {x.dims.product(0, split), x.dims.product(split, x.dims.rank)}, out);
}

std::vector<int64_t> axes_of(const Node& node, const Arguments& in) {
    return node.has("axes") ? node.ints("axes")
           : present(in, 1) ? constant_ints(in, 1, node)
                            : std::vector<int64_t>{};
}

void infer_squeeze(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    bool dropped[kMaxRank] = {};
    const std::vector<int64_t> axes = axes_of(node, in);
    for (int64_t axis : axes) dropped[resolve_axis(axis, x.dims.rank, node.describe())] = true;
    Dims dims;
    for (int axis = 0; axis < x.dims.rank; axis++) {
        const bool drop = axes.empty() ? x.dims[axis] == 1 : dropped[axis];
        check(!drop || x.dims[axis] == 1, node.describe() + " drops a dimension that is not 1");
        if (!drop) dims.push(x.dims[axis]);
    }
    finish(node, x, dims, out);
}

void infer_unsqueeze(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    const std::vector<int64_t> axes = axes_of(node, in);
    const int64_t rank = x.dims.rank + static_cast<int64_t>(axes.size());
    check(rank <= kMaxRank, node.describe() + " makes more than 8 dimensions");
    bool added[kMaxRank] = {};
    for (int64_t axis : axes) {
        bool& place = added[resolve_axis(axis, static_cast<int>(rank), node.describe())];
        check(!place, node.describe() + " names an axis twice");
        place = true;
    }
    Dims dims;
    for (int axis = 0, from = 0; axis < rank; axis++) dims.push(added[axis] ? 1 : x.dims[from++]);
    finish(node, x, dims, out);
}

// ---- Copies with strides: element i of the result comes from the input's element at start + sum of index *
// step.

struct Walk {
    Dims dims;
    int64_t start = 0;
    int64_t step[kMaxRank] = {};
};

template <class T>
void walk_as(const Walk& walk, const void* from, void* to) {
    const T* x = static_cast<const T*>(from) + walk.start;
    T* y = static_cast<T*>(to);
    const int last = walk.dims.rank - 1;
    const int64_t inner = last >= 0 ? walk.dims[last] : 1, step = last >= 0 ? walk.step[last] : 0;
    const int64_t outer = last >= 0 ? walk.dims.product(0, last) : 1;
    int64_t at[kMaxRank] = {};
    for (int64_t row = 0; row < outer; row++, y += inner) {
        int64_t begin = 0;
        for (int axis = 0; axis < last; axis++) begin += at[axis] * walk.step[axis];
        for (int64_t i = 0; i < inner; i++) y[i] = x[begin + i * step];
        for (int axis = last - 1; axis >= 0 && ++at[axis] == walk.dims[axis]; axis--) at[axis] = 0;
    }
}

void walk_all(const Walk& walk, const View& in, const View& out) {
    if (!out.count()) return;
    switch (type_bytes(in.type)) {
        case 8:
            return walk_as<int64_t>(walk, in.data, out.data);
        case 4:
            return walk_as<int32_t>(walk, in.data, out.data);
        default:
            return walk_as<uint8_t>(walk, in.data, out.data);
    }
}

Dims permutation_of(const Node& node, const Dims& dims) {
    Dims permutation;
    bool seen[kMaxRank] = {};
    if (!node.has("perm")) {
        for (int axis = dims.rank - 1; axis >= 0; axis--) permutation.push(axis);
        return permutation;
    }
    for (int64_t axis : node.ints("perm")) {
        check(axis >= 0 && axis < dims.rank && !seen[axis], node.describe() + ": perm is no permutation");
        seen[axis] = true;
        permutation.push(axis);
    }
    check(permutation.rank == dims.rank, node.describe() + ": perm is no permutation");
    return permutation;
}

void infer_transpose(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    const Dims permutation = permutation_of(node, x.dims);
    out[0].type = x.type, out[0].dims = x.dims;
    for (int axis = 0; axis < x.dims.rank; axis++)
        out[0].dims[axis] = x.dims[static_cast<int>(permutation[axis])];
}

void run_transpose(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const Dims permutation = permutation_of(node, in[0].dims);
    int64_t step[kMaxRank] = {};
    row_major(in[0].dims, step);
    Walk walk;
    walk.dims = out[0].dims;
    for (int axis = 0; axis < permutation.rank; axis++) walk.step[axis] = step[permutation[axis]];
    walk_all(walk, in[0], out[0]);
}

void infer_expand(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    Dims wanted;
    for (int64_t size : constant_ints(in, 1, node)) wanted.push(size);
    check_dims(wanted, node.describe());
    out[0].type = x.type, out[0].dims = broadcast(x.dims, wanted, node);
}

void run_expand(const Node&, const Views& in, const Views& out, ThreadPool&) {
    int64_t step[kMaxRank] = {};
    row_major(in[0].dims, step);
    Walk walk;
    walk.dims = out[0].dims;
    const int shift = walk.dims.rank - in[0].dims.rank;
    for (int axis = 0; axis < in[0].dims.rank; axis++) {
        walk.step[axis + shift] = in[0].dims[axis] == 1 ? 0 : step[axis];
    }
    walk_all(walk, in[0], out[0]);
}

// ---- Slice: starts, ends, axes and steps are constants.

Walk slice_of(const Node& node, const Dims& dims, const std::vector<int64_t>& starts,
              const std::vector<int64_t>& ends, const std::vector<int64_t>& axes,
              const std::vector<int64_t>& steps) {
    check(starts.size() == ends.size() && (axes.empty() || axes.size() == starts.size()) &&
              (steps.empty() || steps.size() == starts.size()),
          node.describe() + ": starts, ends, axes and steps have different lengths");
    Walk walk;
    walk.dims = dims;
    int64_t unit[kMaxRank] = {};
    row_major(dims, unit);
    std::copy(unit, unit + kMaxRank, walk.step);
    for (size_t i = 0; i < starts.size(); i++) {
        const int axis =
            resolve_axis(axes.empty() ? static_cast<int64_t>(i) : axes[i], dims.rank, node.describe());
        const int64_t size = dims[axis], step = steps.empty() ? 1 : steps[i];
        check(step != 0 && step > -kMaxElements && step < kMaxElements,
              node.describe() + ": a step is impossible");
        const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
        const auto bound = [&](int64_t at) {
            at = at < -kMaxElements ? -kMaxElements : at;
            return std::clamp(at < 0 ? at + size : at, lowest, highest);
        };
        const int64_t first = bound(starts[i]), end = bound(ends[i]);
        const int64_t span = step > 0 ? end - first : first - end, stride = step > 0 ? step : -step;
        walk.dims[axis] = span > 0 ? (span + stride - 1) / stride : 0;
        if (walk.dims[axis]) walk.start += first * unit[axis];
        walk.step[axis] = unit[axis] * step;
    }
    return walk;
}

void infer_slice(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    out[0].type = x.type;
    out[0].dims =
        node.has("starts")
            ? slice_of(node, x.dims, node.ints("starts"), node.ints("ends"), node.ints("axes"), {}).dims
            : slice_of(node, x.dims, constant_ints(in, 1, node), constant_ints(in, 2, node),
                       optional_ints(in, 3, node), optional_ints(in, 4, node))
                  .dims;
}

void run_slice(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const Walk walk = node.has("starts") ? slice_of(node, in[0].dims, node.ints("starts"), node.ints("ends"),
                                                    node.ints("axes"), {})
                                         : slice_of(node, in[0].dims, view_ints(in, 1), view_ints(in, 2),
                                                    view_ints(in, 3), view_ints(in, 4));
    walk_all(walk, in[0], out[0]);
}

}  // namespace

void add_movement(Table& table) {
    table["Reshape"] = {infer_reshape, copy_all};
    table["Flatten"] = {infer_flatten, copy_all};
    table["Squeeze"] = {infer_squeeze, copy_all};
    table["Unsqueeze"] = {infer_unsqueeze, copy_all};
    table["Transpose"] = {infer_transpose, run_transpose};
    table["Expand"] = {infer_expand, run_expand};
    table["Slice"] = {infer_slice, run_slice};
}

}  // namespace lowbit::runtime
