// Convolutions, linear layers and products of two tensors. See planner.h.
#include "runtime/matmul_step.h"
#include "runtime/planner.h"

#include <algorithm>

namespace lowbit::runtime {

bool Planner::plan_product(int number) {
    const Node& node = graph_.nodes[number];
    const bool is_conv = node.kind == "Conv";
    if (!is_conv && node.kind != "MatMul" && node.kind != "Gemm") return false;
    const int source = facts_.source(node.inputs[0]);
    if (source < 0) return false;
    Weights weights;
    const bool fits = is_conv || facts_.dims(source).rank != 4;
    if (!fits || !read_weights(node, &weights)) return !is_conv && plan_matmul(node);
    const bool has_bias = node.inputs.size() > 2 && node.inputs[2] != kAbsent;
    const int64_t channels = weights.shape.groups * weights.shape.outputs;
    std::vector<float> bias(static_cast<size_t>(channels));
    if (has_bias) {
        const Tensor* given = facts_.constant(node.inputs[2]);
        if (!given || given->type != Type::float32 || given->count() != channels) return false;
        std::copy(given->as<float>(), given->as<float>() + channels, bias.begin());
    }
    Chain chain;
    chain.output = node.outputs[0];
    if (!unmerged_) {
        chain = product_chain(facts_, node.outputs[0], has_bias, channels,
                              is_conv ? ChannelAxis::second : ChannelAxis::last);
    }
    if (!chain.bias.empty()) bias = chain.bias;
    emit_with(number, chain,
              [this, number, source, chain, bias,
               shared = std::make_shared<Weights>(weights)](const std::string& label) {
                  emit_product(graph_.nodes[number], source, *shared, bias, chain, label);
              });
    return true;
}

void Planner::emit_product(const Node& node, int source, const Weights& weights,
                           const std::vector<float>& bias, const Chain& chain, const std::string& label) {
    const Bytes& from = bytes_[source];
    Epilogue epilogue;
    for (float scale : weights.scale) epilogue.scale.push_back(from.grid.scale * scale);
    epilogue.bias = bias;
    epilogue.first = chain.first;
    epilogue.second = chain.second;
    ConvTarget target;
    target.to_float = !chain.to_integers;
    Window window{{1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, {1, 1}};
    if (node.kind == "Conv") window = window_of(node, facts_.dims(source), weights.shape.kernel);
    const int64_t channels = weights.shape.groups * weights.shape.outputs;
    if (target.to_float) {
        target.slot = new_plain(chain.output);
        target.plane = node.kind == "Conv" ? window.out[0] * window.out[1] : 1;
        target.image = channels * window.out[0] * window.out[1];
        target.pixel = 1;
    } else {
        if (chain.residual >= 0) {
            epilogue.has_residual = true;
            target.residual = bytes_[chain.residual];
            epilogue.residual = target.residual.grid;
        }
        if (chain.middle >= 0) {
            epilogue.has_middle = true;
            epilogue.middle = facts_.integers(chain.middle)->grid;
        }
        target.bytes = new_bytes(chain.output);
        epilogue.out = chain.has_table ? facts_.integers(chain.before_table)->grid : target.bytes.grid;
        epilogue.has_table = chain.has_table;
        epilogue.table = chain.table;
    }
    add_step(conv_step(from, window, packed(node.inputs[1], weights, from), epilogue, target), label);
}

PackedPointer Planner::packed(int tensor, const Weights& weights, const Bytes& source) {
    const std::lock_guard<std::mutex> lock(engine_.mutex);
    const PackedKey key{tensor, source.grid.zero, source.grid.highest, source.repeats_first,
                        instruction_set()};
    PackedPointer& found = engine_.packed[key];
    if (!found) found = pack_weights(weights.shape, weights.integers.data(), source);
    return found;
}

bool Planner::read_weights(const Node& node, Weights* weights) const {
    const int values = node.inputs[1];
    if (facts_.producer(values) < 0) return false;
    const Node& dequantize = graph_.nodes[facts_.producer(values)];
    if (dequantize.kind != "DequantizeLinear") return false;
    const Tensor *tensor = facts_.constant(dequantize.inputs[0]),
                 *scale = facts_.constant(dequantize.inputs[1]);
    if (!tensor || !scale) return false;
    const bool is_conv = node.kind == "Conv", by_rows = is_conv || node.i("transB", 0);
    const Dims& dims = tensor->dims;
    if (!is_conv && dims.rank != 2) return false;
    if (node.kind == "Gemm" && (node.i("transA", 0) || node.f("alpha", 1) != 1 || node.f("beta", 1) != 1)) {
        return false;
    }
    ConvShape& shape = weights->shape;
    const int64_t outputs = dims[by_rows ? 0 : 1];
    if (is_conv) {
        shape.groups = node.i("group", 1);
        shape.kernel[0] = dims[2], shape.kernel[1] = dims[3];
    }
    shape.outputs = outputs / shape.groups;
    shape.inputs = dims[by_rows ? 1 : 0];
    if (tensor->count() == 0) return false;
    const int axis = by_rows ? 0 : 1;
    if (scale->count() != 1 &&
        resolve_axis(dequantize.i("axis", 1), dims.rank, dequantize.describe()) != axis) {
        return false;
    }
    weights->scale.resize(static_cast<size_t>(outputs));
    for (int64_t o = 0; o < outputs; o++) weights->scale[o] = scale->as<float>()[scale->count() == 1 ? 0 : o];
    return read_integers(dequantize, *tensor, outputs, by_rows, &weights->integers);
}

bool Planner::read_integers(const Node& dequantize, const Tensor& tensor, int64_t outputs, bool by_rows,
                            std::vector<int16_t>* integers) const {
    const bool has_zero = dequantize.inputs.size() > 2 && dequantize.inputs[2] != kAbsent;
    const Tensor* zeros = has_zero ? facts_.constant(dequantize.inputs[2]) : nullptr;
    if ((has_zero && !zeros) || tensor.type == Type::int32) return false;
    const bool is_signed = tensor.type == Type::int8 || tensor.type == Type::int4;
    const auto at = [is_signed](const Tensor& of, int64_t i) -> int {
        return is_signed ? static_cast<int>(of.as<int8_t>()[i]) : static_cast<int>(of.as<uint8_t>()[i]);
    };
    const int64_t per_output = tensor.count() / outputs;
    integers->resize(static_cast<size_t>(tensor.count()));
    for (int64_t o = 0; o < outputs; o++) {
        const int zero = zeros ? at(*zeros, zeros->count() == 1 ? 0 : o) : 0;
        for (int64_t i = 0; i < per_output; i++) {
            const int value = at(tensor, by_rows ? o * per_output + i : i * outputs + o) - zero;
            if (value < -128 || value > 127) return false;
            (*integers)[o * per_output + i] = static_cast<int16_t>(value);
        }
    }
    return true;
}

bool Planner::plan_matmul(const Node& node) {
    if (node.kind != "MatMul") return false;
    const int a = facts_.source(node.inputs[0]), b = facts_.source(node.inputs[1]);
    if (a < 0 || b < 0) return false;
    const int a_slot = plain(a), b_slot = plain(b);
    const MatMulOperand left{a_slot, facts_.dims(a), *facts_.integers(a)};
    const MatMulOperand right{b_slot, facts_.dims(b), *facts_.integers(b)};
    add_step(matmul_step(left, right, facts_.dims(node.outputs[0]), new_plain(node.outputs[0])),
             "MatMul \"" + node.name + "\"");
    return true;
}

}  // namespace lowbit::runtime
