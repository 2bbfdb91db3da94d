// Data taken apart and put together: Concat, Split, Gather, Pad, and tensors made of shapes. See operators.h.
#include "runtime/operators.h"

#include <algorithm>

namespace lowbit::runtime {
namespace {

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

void add_joins(Table& table) {
    table["Concat"] = {infer_concat, run_concat};
    table["Split"] = {infer_split, run_split};
    table["Gather"] = {infer_gather, run_gather};
    table["Pad"] = {infer_pad, run_pad};
    table["Shape"] = {infer_shape, run_shape};
    table["ConstantOfShape"] = {infer_constant_of_shape, run_constant_of_shape};
}

}  // namespace lowbit::runtime
