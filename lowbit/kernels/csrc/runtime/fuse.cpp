// The chains of operators that become part of a step; see fuse.h.
#include "runtime/fuse.h"

#include <algorithm>

namespace lowbit::runtime {
namespace {

// The node that alone reads the tensor as its first input, if it is of this kind; or -1.
int next(const Facts& facts, int tensor, const char* kind) {
    const int node = facts.only_consumer(tensor);
    if (node < 0) return -1;
    const Node& found = facts.graph().nodes[node];
    return found.kind == kind && found.inputs[0] == tensor ? node : -1;
}

// A function of one number that alone reads the tensor; or -1.
int next_unary(const Facts& facts, int tensor, Unary* unary) {
    const int node = facts.only_consumer(tensor);
    if (node < 0) return -1;
    const Node& found = facts.graph().nodes[node];
    return found.inputs[0] == tensor && as_unary(found, facts.inputs_of(found), unary) ? node : -1;
}

// Quantization of the tensor, and a Clip of the integers: absorbed, and the integer tensor that they give; or
// -1.
int next_integers(const Facts& facts, int tensor, std::vector<int>* nodes) {
    const int quantize = next(facts, tensor, "QuantizeLinear");
    if (quantize < 0) return -1;
    int out = facts.graph().nodes[quantize].outputs[0];
    if (!facts.integers(out)) return -1;
    nodes->push_back(quantize);
    const int clip = next(facts, out, "Clip");
    if (clip >= 0 && facts.integers(facts.graph().nodes[clip].outputs[0])) {
        nodes->push_back(clip);
        out = facts.graph().nodes[clip].outputs[0];
    }
    return out;
}

// One number per channel of a constant that is added; empty if it is something else.
std::vector<float> channel_values(const Tensor* constant, int64_t channels, ChannelAxis axis, int rank) {
    if (!constant || constant->type != Type::float32 || constant->dims.rank > rank) return {};
    const int from_end = axis == ChannelAxis::last ? 1 : rank - 1;  // where the channels are
    const Dims& dims = constant->dims;
    for (int i = 1; i <= dims.rank; i++) {
        const int64_t size = dims[dims.rank - i];
        if (size != 1 && (i != from_end || size != channels)) return {};
    }
    std::vector<float> values(static_cast<size_t>(channels), constant->as<float>()[0]);
    if (constant->count() == channels)
        std::copy(constant->as<float>(), constant->as<float>() + channels, values.begin());
    return values;
}

// A residual sum of the tensor that ends in an integer tensor: absorbed if so.
bool absorb_sum(const Facts& facts, int tensor, Chain* chain) {
    const int add = facts.only_consumer(tensor);
    if (add < 0) return false;
    const Node& node = facts.graph().nodes[add];
    if (node.kind != "Add" || node.inputs.size() != 2) return false;
    const int other = node.inputs[0] == tensor ? node.inputs[1] : node.inputs[0];
    const int residual = facts.source(other);
    if (residual < 0 || facts.dims(residual) != facts.dims(tensor)) return false;
    Chain longer = *chain;
    longer.nodes.push_back(add);
    longer.residual = residual;
    int after = node.outputs[0];
    Unary unary;
    const int activation = next_unary(facts, after, &unary);
    if (activation >= 0 && is_simple(unary)) {
        longer.nodes.push_back(activation);
        longer.second = unary;
        after = facts.graph().nodes[activation].outputs[0];
    }
    longer.output = next_integers(facts, after, &longer.nodes);
    if (longer.output < 0) return false;
    longer.to_integers = true;
    *chain = longer;
    return true;
}

// The only reader of an integer tensor, if it turns it into floats: its output, or -1. Floats that are
// rounded to the same grid again stay what they are.
int only_values(const Facts& facts, int tensor, std::vector<int>* nodes) {
    const int node = next(facts, tensor, "DequantizeLinear");
    if (node < 0) return -1;
    const int out = facts.graph().nodes[node].outputs[0];
    if (facts.source(out) != tensor) return -1;
    nodes->push_back(node);
    std::vector<int> longer = *nodes;
    const int again = next_integers(facts, out, &longer);
    if (again < 0 || !(facts.integers(again)->grid == facts.integers(tensor)->grid)) return out;
    const int values = only_values(facts, again, &longer);
    if (values < 0) return out;
    *nodes = longer;
    return values;
}

// Behind `functions` of the integer tensor `from`, whose value is `at`: more functions of one number, then
// quantization, all as a table. False, and nothing absorbed, if the chain does not end so.
bool absorb_table(const Facts& facts, int from, int at, std::vector<Unary> functions, Chain* chain) {
    Chain longer = *chain;
    Unary unary;
    for (int node; (node = next_unary(facts, at, &unary)) >= 0; at = facts.graph().nodes[node].outputs[0]) {
        functions.push_back(unary);
        longer.nodes.push_back(node);
    }
    longer.output = next_integers(facts, at, &longer.nodes);
    if (functions.empty() || longer.output < 0) return false;
    const Grid &source = facts.integers(from)->grid, &target = facts.integers(longer.output)->grid;
    uint8_t table[256];
    for (int byte = 0; byte < 256; byte++) {
        float v = dequantize_one(static_cast<uint8_t>(byte), source);
        for (const Unary& one : functions) v = apply(one, v);
        table[byte] = quantize_one(v, target);
    }
    longer.table = ByteTable(table);
    longer.to_integers = longer.has_table = true;
    longer.before_table = from;
    *chain = longer;
    return true;
}

}  // namespace

Chain product_chain(const Facts& facts, int tensor, bool has_bias, int64_t channels, ChannelAxis axis) {
    Chain chain;
    chain.output = tensor;
    const int add = facts.only_consumer(tensor);
    if (!has_bias && add >= 0 && facts.graph().nodes[add].kind == "Add") {
        const Node& node = facts.graph().nodes[add];
        const int other = node.inputs[0] == tensor ? node.inputs[1] : node.inputs[0];
        chain.bias = channel_values(facts.constant(other), channels, axis, facts.dims(tensor).rank);
        if (!chain.bias.empty()) {
            chain.nodes.push_back(add);
            chain.output = node.outputs[0];
        }
    }
    Unary unary;
    const int activation = next_unary(facts, chain.output, &unary);
    if (activation >= 0 && is_simple(unary)) {
        chain.nodes.push_back(activation);
        chain.first = unary;
        chain.output = facts.graph().nodes[activation].outputs[0];
    }
    if (absorb_sum(facts, chain.output, &chain)) return chain;
    const int integers = next_integers(facts, chain.output, &chain.nodes);
    if (integers < 0) return chain;
    chain.output = integers;
    chain.to_integers = true;
    Chain longer = chain;
    const int values = only_values(facts, integers, &longer.nodes);
    if (values < 0) return chain;
    longer.middle = integers;
    if (absorb_sum(facts, values, &longer)) return longer;
    longer.middle = -1;
    return absorb_table(facts, integers, values, {}, &longer) ? longer : chain;
}

Chain rounded_chain(const Facts& facts, int tensor, bool activates) {
    Chain chain;
    chain.output = tensor;
    Unary unary;
    const int activation = activates ? next_unary(facts, tensor, &unary) : -1;
    if (activation >= 0 && (unary.function == Function::clamp || unary.function == Function::identity)) {
        chain.nodes.push_back(activation);
        chain.first = unary;
        chain.output = facts.graph().nodes[activation].outputs[0];
    }
    const int integers = next_integers(facts, chain.output, &chain.nodes);
    if (integers < 0) return {};
    chain.output = integers;
    chain.to_integers = true;
    return chain;
}

Chain table_chain(const Facts& facts, int node) {
    Chain chain;
    const Node& start = facts.graph().nodes[node];
    const int from = facts.source(start.inputs[0]);  // it may have other readers
    Unary first;
    if (from < 0 || !as_unary(start, facts.inputs_of(start), &first)) return chain;
    return absorb_table(facts, from, start.outputs[0], {first}, &chain) ? chain : Chain{};
}

}  // namespace lowbit::runtime
