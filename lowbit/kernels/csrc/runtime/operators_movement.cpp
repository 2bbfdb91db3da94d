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

void row_major(const Dims& dims, int64_t* step) {
    int64_t size = 1;
    for (int axis = dims.rank - 1; axis >= 0; axis--) step[axis] = size, size *= dims[axis];
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

std::vector<int64_t> view_ints(const Views& in, size_t number) {
    if (!present(in, number)) return {};
    const int64_t count = in[number].count();
    if (in[number].type == Type::int32) return {in[number].as<int32_t>(), in[number].as<int32_t>() + count};
    return {in[number].as<int64_t>(), in[number].as<int64_t>() + count};
}

std::vector<int64_t> optional_ints(const Arguments& in, size_t number, const Node& node) {
    return present(in, number) ? constant_ints(in, number, node) : std::vector<int64_t>{};
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

// ---- Several tensors along an axis.

void infer_concat(const Node& node, const Arguments& in, Arguments& out) {
    out[0] = need(in, 0, node);
    out[0].constant = nullptr;
    const int axis = resolve_axis(node.i("axis", 0), out[0].dims.rank, node.describe());
    for (size_t i = 1; i < in.size(); i++) {
        Dims same = need(in, i, node).dims;
        check(in[i].type == out[0].type && same.rank == out[0].dims.rank,
              node.describe() + ": parts do not fit");
        const int64_t size = same[axis];
        same[axis] = out[0].dims[axis];
        check(same == out[0].dims, node.describe() + ": parts do not fit");
        out[0].dims[axis] += size;
    }
    check_dims(out[0].dims, node.describe());
}

void run_concat(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const int axis = resolve_axis(node.i("axis", 0), out[0].dims.rank, node.describe());
    const int64_t outer = out[0].dims.product(0, axis), element = type_bytes(out[0].type);
    const int64_t row = out[0].dims.product(axis, out[0].dims.rank) * element;
    uint8_t* to = out[0].as<uint8_t>();
    for (const View& part : in) {
        const int64_t bytes = part.dims.product(axis, part.dims.rank) * element;
        for (int64_t i = 0; i < outer && bytes; i++) {
            memcpy(to + i * row, part.as<uint8_t>() + i * bytes, static_cast<size_t>(bytes));
        }
        to += bytes;
    }
}

void infer_split(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    const int axis = resolve_axis(node.i("axis", 0), x.dims.rank, node.describe());
    std::vector<int64_t> sizes = node.has("split") ? node.ints("split") : optional_ints(in, 1, node);
    const int64_t parts = static_cast<int64_t>(out.size());
    if (sizes.empty()) {
        const int64_t each = ceil_div(x.dims[axis], parts);
        for (int64_t left = x.dims[axis], i = 0; i < parts; i++, left -= sizes.back()) {
            sizes.push_back(std::min(each, left));
        }
    }
    check(sizes.size() == out.size(), node.describe() + ": as many sizes as outputs are needed");
    int64_t sum = 0;
    for (size_t i = 0; i < out.size(); i++) {
        check(sizes[i] >= 0 && (sum += sizes[i]) <= x.dims[axis], node.describe() + ": the sizes do not fit");
        out[i].type = x.type, out[i].dims = x.dims;
        out[i].dims[axis] = sizes[i];
    }
    check(sum == x.dims[axis], node.describe() + ": the sizes do not fit");
}

void run_split(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const int axis = resolve_axis(node.i("axis", 0), in[0].dims.rank, node.describe());
    const int64_t outer = in[0].dims.product(0, axis), element = type_bytes(in[0].type);
    const int64_t row = in[0].dims.product(axis, in[0].dims.rank) * element;
    const uint8_t* from = in[0].as<uint8_t>();
    for (const View& part : out) {
        const int64_t bytes = part.dims.product(axis, part.dims.rank) * element;
        for (int64_t i = 0; i < outer && part.data && bytes; i++) {
            memcpy(part.as<uint8_t>() + i * bytes, from + i * row, static_cast<size_t>(bytes));
        }
        from += bytes;
    }
}

void infer_gather(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    const Argument& indices = need(in, 1, node);
    check(indices.type == Type::int64 || indices.type == Type::int32,
          node.describe() + ": indices are no integers");
    const int axis = resolve_axis(node.i("axis", 0), x.dims.rank, node.describe());
    check(x.dims.rank > 0, node.describe() + " of a single number");
    Dims dims;
    for (int i = 0; i < axis; i++) dims.push(x.dims[i]);
    for (int i = 0; i < indices.dims.rank; i++) dims.push(indices.dims[i]);
    for (int i = axis + 1; i < x.dims.rank; i++) dims.push(x.dims[i]);
    check_dims(dims, node.describe());
    out[0].type = x.type, out[0].dims = dims;
}

void run_gather(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const Dims& dims = in[0].dims;
    const int axis = resolve_axis(node.i("axis", 0), dims.rank, node.describe());
    const int64_t bytes = dims.product(axis + 1, dims.rank) * type_bytes(in[0].type);
    const int64_t outer = dims.product(0, axis), count = in[1].count(), size = dims[axis];
    uint8_t* to = out[0].as<uint8_t>();
    for (int64_t i = 0; i < outer; i++) {
        for (int64_t j = 0; j < count; j++, to += bytes) {
            int64_t index = in[1].type == Type::int32 ? in[1].as<int32_t>()[j] : in[1].as<int64_t>()[j];
            check(index >= -size && index < size, node.describe() + ": index " + std::to_string(index) +
                                                      " is outside of " + std::to_string(size) + " entries");
            index += index < 0 ? size : 0;
            if (bytes)
                memcpy(to, in[0].as<uint8_t>() + (i * size + index) * bytes, static_cast<size_t>(bytes));
        }
    }
}

// ---- Pad with a constant, or by repeating the edge or reflecting.

struct Padding {
    int64_t before[kMaxRank] = {}, after[kMaxRank] = {};
};

Padding padding_of(const Node& node, const Dims& dims, const std::vector<int64_t>& pads,
                   const std::vector<int64_t>& axes) {
    const size_t count = axes.empty() ? static_cast<size_t>(dims.rank) : axes.size();
    check(pads.size() == 2 * count, node.describe() + ": pads do not fit the tensor");
    Padding padding;
    for (size_t i = 0; i < count; i++) {
        const int axis =
            resolve_axis(axes.empty() ? static_cast<int64_t>(i) : axes[i], dims.rank, node.describe());
        padding.before[axis] = pads[i], padding.after[axis] = pads[count + i];
        const auto possible = [](int64_t pad) { return pad > -kMaxElements && pad < kMaxElements; };
        check(possible(pads[i]) && possible(pads[count + i]), node.describe() + ": pads are impossible");
    }
    return padding;
}

void infer_pad(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    const std::string mode = node.s("mode", "constant");
    check(mode == "constant" || mode == "edge" || mode == "reflect",
          node.describe() + ": unknown mode " + mode);
    need_type(x, Type::float32, node);
    const Padding padding =
        padding_of(node, x.dims, node.has("pads") ? node.ints("pads") : constant_ints(in, 1, node),
                   optional_ints(in, 3, node));
    if (present(in, 2)) {
        need_type(in[2], Type::float32, node);
        check(in[2].dims.count() == 1, node.describe() + ": the value is no single number");
    }
    out[0].type = x.type, out[0].dims = x.dims;
    for (int axis = 0; axis < x.dims.rank; axis++) {
        const int64_t most = x.dims[axis] - (mode == "reflect" ? 1 : 0);
        check(mode == "constant" || (x.dims[axis] > 0 && (mode == "edge" || (padding.before[axis] <= most &&
                                                                             padding.after[axis] <= most))),
              node.describe() + ": pads are larger than the tensor");
        out[0].dims[axis] += padding.before[axis] + padding.after[axis];
    }
    check_dims(out[0].dims, node.describe());
}

void run_pad(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const Dims &from = in[0].dims, &to = out[0].dims;
    const Padding padding =
        padding_of(node, from, node.has("pads") ? node.ints("pads") : view_ints(in, 1), view_ints(in, 3));
    const std::string mode = node.s("mode", "constant");
    const float value = present(in, 2) ? *in[2].as<float>() : node.f("value", 0);
    int64_t step[kMaxRank] = {}, at[kMaxRank] = {};
    row_major(from, step);
    for (int64_t i = 0, count = to.count(); i < count; i++) {
        int64_t source = 0;
        bool inside = true;
        for (int axis = 0; axis < to.rank; axis++) {
            int64_t x = at[axis] - padding.before[axis];
            if (mode == "edge") x = std::clamp<int64_t>(x, 0, from[axis] - 1);
            if (mode == "reflect") x = x < 0 ? -x : x >= from[axis] ? 2 * (from[axis] - 1) - x : x;
            inside = inside && x >= 0 && x < from[axis];
            source += x * step[axis];
        }
        out[0].as<float>()[i] = inside ? in[0].as<float>()[source] : value;
        for (int axis = to.rank - 1; axis >= 0 && ++at[axis] == to[axis]; axis--) at[axis] = 0;
    }
}

// ---- Constants.

void infer_shape(const Node& node, const Arguments& in, Arguments& out) {
    out[0].type = Type::int64, out[0].dims = {static_cast<int64_t>(need(in, 0, node).dims.rank)};
    check(!node.has("start") && !node.has("end"), node.describe() + " of some axes is not supported");
}

void run_shape(const Node&, const Views& in, const Views& out, ThreadPool&) {
    std::copy(in[0].dims.size, in[0].dims.size + in[0].dims.rank, out[0].as<int64_t>());
}

void infer_constant_of_shape(const Node& node, const Arguments& in, Arguments& out) {
    Dims dims;
    for (int64_t size : constant_ints(in, 0, node)) dims.push(size);
    check_dims(dims, node.describe());
    const auto value = node.attributes.find("value");
    const bool given = value != node.attributes.end() && value->second.tensor;
    check(!given || value->second.tensor->count() == 1, node.describe() + ": the value is no single number");
    out[0].type = given ? value->second.tensor->type : Type::float32, out[0].dims = dims;
}

void run_constant_of_shape(const Node& node, const Views&, const Views& out, ThreadPool&) {
    const auto value = node.attributes.find("value");
    const size_t element = static_cast<size_t>(type_bytes(out[0].type));
    for (int64_t i = 0; i < out[0].count(); i++) {
        uint8_t* to = out[0].as<uint8_t>() + static_cast<size_t>(i) * element;
        if (value == node.attributes.end() || !value->second.tensor) {
            memset(to, 0, element);
        } else {
            memcpy(to, value->second.tensor->bytes.data(), element);
        }
    }
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
    table["Concat"] = {infer_concat, run_concat};
    table["Split"] = {infer_split, run_split};
    table["Gather"] = {infer_gather, run_gather};
    table["Pad"] = {infer_pad, run_pad};
    table["Shape"] = {infer_shape, run_shape};
    table["ConstantOfShape"] = {infer_constant_of_shape, run_constant_of_shape};
}

}  // namespace lowbit::runtime
