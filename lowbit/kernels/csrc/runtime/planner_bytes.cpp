// Steps on bytes without weights: pools, sums, concatenations, tables. See planner.h.
#include "runtime/planner.h"

#include <algorithm>

namespace lowbit::runtime {

bool Planner::plan_average(int number) {
    const Node& node = graph_.nodes[number];
    const bool global = node.kind == "GlobalAveragePool" || is_image_mean(node);
    if (!global && node.kind != "AveragePool") return false;
    const Bytes* bytes = bytes_behind(node.inputs[0]);
    const Dims& dims = facts_.dims(node.inputs[0]);
    if (!bytes || dims.rank != 4) return false;
    const Bytes from = *bytes;
    Window window{{dims[2], dims[3]}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, {1, 1}};
    if (!global) window = window_of(node, dims, nullptr);
    check(window.kernel[0] * window.kernel[1] < (1 << 22), node.describe() + ": its window is too large");
    const bool count_pads = !global && node.i("count_include_pad", 0);
    const Chain chain = unmerged_ ? Chain{} : rounded_chain(facts_, node.outputs[0], true);
    if (!chain.to_integers) {
        Bytes to = from;
        to.slot = new_plain(node.outputs[0]);
        add_step(average_pool_step(from, window, count_pads, {}, to, true),
                 node.kind + " \"" + node.name + "\"");
        return true;
    }
    emit_with(number, chain, [this, from, window, count_pads, chain](const std::string& label) {
        add_step(average_pool_step(from, window, count_pads, chain.first, new_bytes(chain.output), false),
                 label);
    });
    return true;
}

bool Planner::is_image_mean(const Node& node) const {
    if (node.kind != "ReduceMean" || facts_.dims(node.inputs[0]).rank != 4) return false;
    std::vector<int64_t> axes = node.ints("axes");
    if (node.inputs.size() > 1 && node.inputs[1] != kAbsent) {
        const Tensor* given = facts_.constant(node.inputs[1]);
        if (given) axes.assign(given->as<int64_t>(), given->as<int64_t>() + given->count());
    }
    for (int64_t& axis : axes) axis += axis < 0 ? 4 : 0;
    std::sort(axes.begin(), axes.end());
    return axes == std::vector<int64_t>{2, 3};
}

bool Planner::plan_max(int number) {
    const Node& node = graph_.nodes[number];
    if (node.kind != "MaxPool") return false;
    const Bytes* bytes = bytes_behind(node.inputs[0]);
    const Chain chain = rounded_chain(facts_, node.outputs[0], false);
    if (!bytes || !chain.to_integers) return false;
    const Window window = window_of(node, facts_.dims(node.inputs[0]), nullptr);
    emit_with(number, chain, [this, from = *bytes, window, chain](const std::string& label) {
        add_step(max_pool_step(from, window, new_bytes(chain.output)), label);
    });
    return true;
}

bool Planner::plan_pair(int number) {
    const Node& node = graph_.nodes[number];
    if ((node.kind != "Add" && node.kind != "Mul") || node.inputs.size() != 2) return false;
    const Bytes *a = bytes_behind(node.inputs[0]), *b = bytes_behind(node.inputs[1]);
    const Chain chain = rounded_chain(facts_, node.outputs[0], true);
    if (!a || !b || !chain.to_integers) return false;
    Dims first = facts_.dims(node.inputs[0]), second = facts_.dims(node.inputs[1]);
    if (first.count() < second.count()) std::swap(a, b), std::swap(first, second);
    const bool one_pixel = first.rank == 4 && second.rank == 4 && first[0] == second[0] &&
                           first[1] == second[1] && second[2] == 1 && second[3] == 1;
    if (first != second && !one_pixel) return false;
    const bool product = node.kind == "Mul";
    emit_with(number, chain, [this, product, a = *a, b = *b, chain](const std::string& label) {
        add_step(pair_step(product, a, b, chain.first, new_bytes(chain.output)), label);
    });
    return true;
}

bool Planner::plan_concat(int number) {
    const Node& node = graph_.nodes[number];
    if (node.kind != "Concat") return false;
    const Dims& dims = facts_.dims(node.outputs[0]);
    const int axis = resolve_axis(node.i("axis", 0), dims.rank, node.describe());
    if (axis != (dims.rank == 4 ? 1 : dims.rank - 1)) return false;
    std::vector<Bytes> parts;
    for (int tensor : node.inputs) {
        const Bytes* part = bytes_behind(tensor);
        if (!part) return false;
        parts.push_back(*part);
    }
    const Chain chain = rounded_chain(facts_, node.outputs[0], false);
    if (!chain.to_integers) return false;
    emit_with(number, chain, [this, parts, chain](const std::string& label) {
        add_step(concat_step(parts, new_bytes(chain.output)), label);
    });
    return true;
}

bool Planner::plan_table(int number) {
    const Chain chain = table_chain(facts_, number);
    if (!chain.to_integers || bytes_[chain.before_table].slot < 0) return false;
    const Bytes from = bytes_[chain.before_table];
    emit_with(number, chain, [this, from, chain](const std::string& label) {
        add_step(table_step(from, new_bytes(chain.output), chain.table), label);
    });
    return true;
}

bool Planner::plan_flatten(int number) {
    const Node& node = graph_.nodes[number];
    if (node.kind != "Reshape" && node.kind != "Flatten" && node.kind != "Squeeze") return false;
    const Bytes* bytes = bytes_behind(node.inputs[0]);
    const Dims &from = facts_.dims(node.inputs[0]), &to = facts_.dims(node.outputs[0]);
    if (!bytes || from.rank != 4 || from[2] * from[3] != 1 || to != Dims{from[0], from[1]}) return false;
    const Chain chain = rounded_chain(facts_, node.outputs[0], false);
    if (!chain.to_integers) return false;
    emit_with(number, chain, [this, from = *bytes, chain](const std::string& label) {
        const Bytes& made = new_bytes(chain.output);
        add_step(table_step(from, made, ByteTable(from.grid, made.grid)), label);
    });
    return true;
}

}  // namespace lowbit::runtime
