// Types and sizes of all tensors, constants folded, and which tensors are integers. See fuse.h.
#include "runtime/fuse.h"

#include <algorithm>
#include <cmath>

namespace lowbit::runtime {
namespace {

constexpr int64_t kLargestFolded = int64_t{1} << 26;  // elements

bool is_byte_type(Type type) { return type == Type::uint8 || type == Type::int8; }

}  // namespace

Facts::Facts(const Graph& graph, const std::vector<Dims>& inputs, const std::vector<int>& wanted,
             ThreadPool& pool)
    : graph_(graph),
      arguments_(graph.names.size()),
      constants_(graph.constants),
      producers_(graph.names.size(), -1),
      consumers_(graph.names.size()),
      wanted_(wanted.begin(), wanted.end()),
      needed_(graph.nodes.size()),
      folded_(graph.nodes.size()),
      absorbed_(graph.nodes.size()) {
    for (const auto& [tensor, constant] : constants_) {
        arguments_[tensor] = {constant->type, constant->dims, constant.get()};
    }
    for (size_t i = 0; i < graph.inputs.size(); i++) {
        arguments_[graph.inputs[i].tensor] = {graph.inputs[i].type, inputs[i], nullptr};
    }
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        for (int tensor : graph.nodes[i].outputs) {
            if (tensor != kAbsent) producers_[tensor] = static_cast<int>(i);
        }
    }
    find_needed();
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        if (needed_[i]) infer(static_cast<int>(i), pool);
    }
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        if (!needed_[i] || folded_[i]) continue;
        for (int tensor : graph.nodes[i].inputs) {
            if (tensor != kAbsent) consumers_[tensor].push_back(static_cast<int>(i));
        }
    }
    find_integers();
}

void Facts::find_needed() {
    std::set<int> tensors = wanted_;
    for (int i = static_cast<int>(graph_.nodes.size()) - 1; i >= 0; i--) {
        const Node& node = graph_.nodes[i];
        for (int tensor : node.outputs) needed_[i] = needed_[i] || tensors.count(tensor);
        if (needed_[i]) tensors.insert(node.inputs.begin(), node.inputs.end());
    }
}

Arguments Facts::inputs_of(const Node& node) const {
    Arguments in;
    for (int tensor : node.inputs) in.push_back(tensor == kAbsent ? Argument{} : arguments_[tensor]);
    return in;
}

void Facts::infer(int number, ThreadPool& pool) {
    const Node& node = graph_.nodes[number];
    Arguments out(node.outputs.size());
    if (node.kind == "Constant") {
        const auto value = node.attributes.find("value");
        check(value != node.attributes.end() && value->second.tensor, node.describe() + " holds no tensor");
        constants_[node.outputs[0]] = value->second.tensor;
        arguments_[node.outputs[0]] = {value->second.tensor->type, value->second.tensor->dims,
                                       value->second.tensor.get()};
        folded_[number] = true;
        return;
    }
    const Operator* op = find_operator(node.kind);
    check(op != nullptr,
          "operator " + node.kind + " (node \"" + node.name + "\") is not supported by the runtime");
    const Arguments in = inputs_of(node);
    op->infer(node, in, out);
    for (const Argument& one : out) check_dims(one.dims, node.describe());
    if (should_fold(node, in) && out[0].dims.count() <= kLargestFolded) {
        fold(node, in, out, pool);
        folded_[number] = true;
    }
    for (size_t i = 0; i < out.size(); i++) {
        if (node.outputs[i] != kAbsent) arguments_[node.outputs[i]] = out[i];
    }
}

bool Facts::should_fold(const Node& node, const Arguments& in) const {
    if (node.kind == "Shape") return true;
    // A weight stays integers, for the product that reads it.
    if (node.kind == "DequantizeLinear" && in[0].type != Type::int32) return false;
    return std::all_of(in.begin(), in.end(),
                       [](const Argument& one) { return one.type == Type::none || one.constant != nullptr; });
}

void Facts::fold(const Node& node, const Arguments& in, Arguments& out, ThreadPool& pool) {
    Views from, to;
    for (const Argument& one : in) {
        void* data = one.constant ? const_cast<uint8_t*>(one.constant->bytes.data()) : nullptr;
        from.push_back({one.type, one.dims, data});
    }
    std::vector<std::shared_ptr<Tensor>> made;
    for (const Argument& one : out) {
        made.push_back(std::make_shared<Tensor>(one.type, one.dims));
        to.push_back({one.type, one.dims, made.back()->bytes.data()});
    }
    find_operator(node.kind)->run(node, from, to, pool);
    for (size_t i = 0; i < out.size(); i++) {
        if (node.outputs[i] == kAbsent) continue;
        out[i].constant = made[i].get();
        constants_[node.outputs[i]] = made[i];
    }
}

int Facts::only_consumer(int tensor) const {
    if (is_wanted(tensor) || consumers_[tensor].size() != 1) return -1;
    const int node = consumers_[tensor][0];
    if (absorbed_[node]) return -1;
    return std::count(graph_.nodes[node].inputs.begin(), graph_.nodes[node].inputs.end(), tensor) == 1 ? node
                                                                                                       : -1;
}

namespace {

// Scale and stored zero point of a QuantizeLinear or DequantizeLinear with one constant scale.
bool read_scale(const Facts& facts, const Node& node, Type type, float* scale, int* zero) {
    const Tensor* scales = facts.constant(node.inputs[1]);
    if (!scales || scales->count() != 1) return false;
    *scale = *scales->as<float>();
    *zero = type == Type::int8 ? 128 : 0;
    if (!(*scale > 0) || !std::isfinite(*scale)) return false;
    if (node.inputs.size() < 3 || node.inputs[2] == kAbsent) return true;
    const Tensor* zeros = facts.constant(node.inputs[2]);
    if (!zeros || zeros->count() != 1 || zeros->type != type) return false;
    *zero += type == Type::int8 ? *zeros->as<int8_t>() : *zeros->as<uint8_t>();
    return true;
}

// A bound of a Clip of bytes, as a stored byte.
bool read_bound(const Facts& facts, const Node& node, size_t number, Type type, int* bound) {
    if (number >= node.inputs.size() || node.inputs[number] == kAbsent) return true;
    const Tensor* tensor = facts.constant(node.inputs[number]);
    if (!tensor || tensor->count() != 1 || tensor->type != type) return false;
    *bound = type == Type::int8 ? *tensor->as<int8_t>() + 128 : *tensor->as<uint8_t>();
    return true;
}

}  // namespace

void Facts::find_integers() {
    for (size_t i = 0; i < graph_.nodes.size(); i++) {
        if (!needed_[i] || folded_[i]) continue;
        const Node& node = graph_.nodes[i];
        const int out = node.outputs[0];
        const Type type = arguments_[out].type;
        if (!is_byte_type(type) || arguments_[out].dims.count() == 0) continue;
        if (node.kind == "QuantizeLinear") {
            IntegerTensor made;
            made.is_signed = type == Type::int8;
            if (read_scale(*this, node, type, &made.grid.scale, &made.grid.zero)) integers_[out] = made;
        } else if (node.kind == "Clip") {
            const IntegerTensor* before = integers(node.inputs[0]);
            if (!before) continue;
            IntegerTensor made = *before;
            int lowest = made.grid.lowest, highest = made.grid.highest;
            if (!read_bound(*this, node, 1, type, &lowest) || !read_bound(*this, node, 2, type, &highest))
                continue;
            made.grid.lowest = std::max(lowest, made.grid.lowest);
            made.grid.highest = std::min(highest, made.grid.highest);
            if (made.grid.lowest <= made.grid.highest) integers_[out] = made;
        }
    }
}

const IntegerTensor* Facts::integers(int tensor) const {
    const auto found = integers_.find(tensor);
    return found == integers_.end() ? nullptr : &found->second;
}

int Facts::source(int tensor) const {
    if (tensor == kAbsent || producers_[tensor] < 0) return -1;
    const Node& node = graph_.nodes[producers_[tensor]];
    if (node.kind != "DequantizeLinear" || folded_[producers_[tensor]]) return -1;
    const IntegerTensor* from = integers(node.inputs[0]);
    if (!from) return -1;
    float scale;
    int zero;
    const Type type = from->is_signed ? Type::int8 : Type::uint8;
    if (!read_scale(*this, node, type, &scale, &zero)) return -1;
    return scale == from->grid.scale && zero == from->grid.zero ? node.inputs[0] : -1;
}

}  // namespace lowbit::runtime
