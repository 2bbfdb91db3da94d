// From a graph to steps: products, pools, sums and tables on bytes, everything else in fp32. See plan.h and
// fuse.h.
//
// Nodes are visited in the graph's order. A step is made when its last operator is reached: by then all that
// any of its operators reads has been computed.
#include "runtime/fuse.h"
#include "runtime/matmul_step.h"

#include <algorithm>
#include <functional>

namespace lowbit::runtime {
namespace {

// An operator of its own, in fp32 (or on int64).
class PlainStep : public Step {
  public:
    PlainStep(const Node& node, Views in, Views out, std::vector<int> in_slots, std::vector<int> out_slots)
        : node_(node),
          op_(find_operator(node.kind)),
          in_(std::move(in)),
          out_(std::move(out)),
          in_slots_(std::move(in_slots)),
          out_slots_(std::move(out_slots)) {
        for (int slot : in_slots_) {
            if (slot >= 0) reads.push_back(slot);
        }
        for (int slot : out_slots_) {
            if (slot >= 0) writes.push_back(slot);
        }
    }
    void run(const Memory& memory, ThreadPool& pool) const override {
        for (size_t i = 0; i < in_.size(); i++)
            in_[i].data = in_slots_[i] < 0 ? nullptr : memory.at(in_slots_[i]);
        for (size_t i = 0; i < out_.size(); i++)
            out_[i].data = out_slots_[i] < 0 ? nullptr : memory.at(out_slots_[i]);
        op_->run(node_, in_, out_, pool);
    }

  private:
    const Node& node_;  // of the engine's graph, which outlives its plans
    const Operator* op_;
    mutable Views in_, out_;  // a plan runs one batch at a time
    std::vector<int> in_slots_, out_slots_;
};

// The constant weights of a product.
struct Weights {
    ConvShape shape;
    std::vector<int16_t> integers;  // [output][input][tap]
    std::vector<float> scale;       // by output channel
};

class Planner {
  public:
    Planner(Engine& engine, const std::vector<Dims>& inputs, const std::vector<int>& wanted, bool unmerged)
        : engine_(engine),
          graph_(engine.graph),
          facts_(engine.graph, inputs, wanted, engine.pool),
          unmerged_(unmerged),
          plain_(graph_.names.size(), -1),
          bytes_(graph_.names.size()),
          waiting_(graph_.nodes.size()) {
        for (size_t i = 0; i < graph_.inputs.size(); i++) {
            Slot slot;
            slot.input = static_cast<int>(i);
            plain_[graph_.inputs[i].tensor] = add_slot(slot);
        }
    }

    PlanParts make(const std::vector<int>& wanted) {
        for (size_t i = 0; i < graph_.nodes.size(); i++) {
            const int number = static_cast<int>(i);
            if (!facts_.is_needed(number) || facts_.is_folded(number)) continue;
            if (!facts_.is_absorbed(number)) visit(number);
            if (waiting_[i]) waiting_[i]();
        }
        for (int tensor : wanted) {
            const Argument& argument = facts_.argument(tensor);
            check(argument.type != Type::none, "\"" + graph_.names[tensor] + "\" is not computed");
            parts_.outputs.push_back({plain(tensor), argument.type, argument.dims});
        }
        return std::move(parts_);
    }

  private:
    // ---- Slots and tensors.

    int add_slot(const Slot& slot) {
        parts_.slots.push_back(slot);
        return static_cast<int>(parts_.slots.size()) - 1;
    }

    int new_slot(int64_t bytes) {
        Slot slot;
        slot.bytes = bytes;
        return add_slot(slot);
    }

    void add_step(StepPointer step, const std::string& label) {
        step->label = label;
        parts_.steps.push_back(std::move(step));
    }

    int new_plain(int tensor) {
        const Argument& argument = facts_.argument(tensor);
        return plain_[tensor] = new_slot(argument.dims.count() * type_bytes(argument.type));
    }

    // The tensor in ONNX's order: its slot, and a step that makes it so, if need be.
    int plain(int tensor) {
        if (plain_[tensor] >= 0) return plain_[tensor];
        if (facts_.constant(tensor)) {
            parts_.constants.push_back(facts_.shared_constant(tensor));
            Slot slot;
            slot.constant = parts_.constants.back()->bytes.data();
            static const int64_t nothing = 0;
            if (!slot.constant) slot.constant = &nothing;
            return plain_[tensor] = add_slot(slot);
        }
        const int source = facts_.source(tensor);
        if (source >= 0 && bytes_[source].slot >= 0) {
            const int slot = new_plain(tensor);
            add_step(dequantize_step(bytes_[source], facts_.dims(tensor), slot), "DequantizeLinear");
            return slot;
        }
        if (facts_.producer(tensor) >= 0) {
            const Node& node = graph_.nodes[facts_.producer(tensor)];
            if (node.kind == "DequantizeLinear" && is_weight(node)) {
                plan_plain(node);
                return plain_[tensor];
            }
        }
        check(bytes_[tensor].slot >= 0, "\"" + graph_.names[tensor] + "\" is read before it is computed");
        const int slot = new_plain(tensor);
        add_step(export_step(bytes_[tensor], facts_.dims(tensor), facts_.integers(tensor)->is_signed, slot),
                 "Integers");
        return slot;
    }

    // Memory for an integer tensor, with the halo that the convolutions that read it need.
    Bytes& new_bytes(int tensor) {
        Bytes& made = bytes_[tensor];
        made.grid = facts_.integers(tensor)->grid;
        made.layout = layout_of(tensor);
        check(made.layout.bytes() <= kMaxElements, "\"" + graph_.names[tensor] + "\" is too large");
        made.slot = new_slot(made.layout.bytes());
        return made;
    }

    Layout layout_of(int tensor) const {
        const Dims& dims = facts_.dims(tensor);
        Layout layout;
        if (dims.rank != 4) {
            layout.channels = dims.rank ? dims[dims.rank - 1] : 1;
            layout.images = dims.count() / layout.channels;
            layout.stride = Layout::stride_of(layout.channels);
            return layout;
        }
        layout.images = dims[0], layout.channels = dims[1], layout.height = dims[2], layout.width = dims[3];
        layout.stride = Layout::stride_of(layout.channels);
        for (int reader : facts_.consumers(tensor)) {
            const Node& values = graph_.nodes[reader];
            if (values.kind != "DequantizeLinear") continue;
            for (int number : facts_.consumers(values.outputs[0])) {
                const Node& conv = graph_.nodes[number];
                if (conv.kind != "Conv" || conv.inputs[0] != values.outputs[0]) continue;
                add_halo(window_of(conv, dims, facts_.dims(conv.inputs[1]).size + 2), &layout);
            }
        }
        return layout;
    }

    static void add_halo(const Window& win, Layout* layout) {
        const int64_t sizes[2] = {layout->height, layout->width};
        int64_t behind[2];
        for (int axis = 0; axis < 2; axis++) {
            const int64_t last = (win.out[axis] - 1) * win.stride[axis] +
                                 (win.kernel[axis] - 1) * win.dilation[axis] - win.pad_before[axis];
            behind[axis] = std::max<int64_t>(last - sizes[axis] + 1, 0);
        }
        layout->top = std::max(layout->top, win.pad_before[0]);
        layout->left = std::max(layout->left, win.pad_before[1]);
        layout->bottom = std::max(layout->bottom, behind[0]);
        layout->right = std::max(layout->right, behind[1]);
    }

    // The bytes that a tensor of floats is made of, or null.
    const Bytes* bytes_behind(int tensor) const {
        const int source = facts_.source(tensor);
        return source >= 0 && bytes_[source].slot >= 0 ? &bytes_[source] : nullptr;
    }

    // ---- Nodes.

    void visit(int number) {
        const Node& node = graph_.nodes[number];
        if (node.kind == "DequantizeLinear" && (facts_.source(node.outputs[0]) >= 0 || is_weight(node)))
            return;
        if (plan_product(number) || plan_average(number)) return;
        if (node.kind == "QuantizeLinear" && facts_.integers(node.outputs[0])) return plan_quantize(node);
        if (node.kind == "Clip" && facts_.integers(node.outputs[0])) return plan_integer_clip(node);
        if (!unmerged_ && (plan_max(number) || plan_pair(number) || plan_concat(number) ||
                           plan_table(number) || plan_flatten(number))) {
            return;
        }
        plan_plain(node);
    }

    // Constants that products read as integers; others get them as floats when they read them.
    bool is_weight(const Node& node) const {
        const Arguments in = facts_.inputs_of(node);
        return std::all_of(in.begin(), in.end(), [](const Argument& one) {
            return one.type == Type::none || one.constant != nullptr;
        });
    }

    // Runs `emit` when the last node of the chain is reached; its other nodes need no steps.
    void emit_with(int number, const Chain& chain, std::function<void(const std::string&)> emit) {
        std::string label = graph_.nodes[number].kind;
        int last = number;
        for (int node : chain.nodes) {
            facts_.absorb(node);
            last = std::max(last, node);
            label += "+" + graph_.nodes[node].kind;
        }
        label += " \"" + graph_.nodes[number].name + "\"";
        waiting_[last] = [emit, label] { emit(label); };
    }

    void plan_plain(const Node& node) {
        Views in, out;
        std::vector<int> in_slots, out_slots;
        for (int tensor : node.inputs) {
            const Argument argument = tensor == kAbsent ? Argument{} : facts_.argument(tensor);
            in.push_back({argument.type, argument.dims, nullptr});
            in_slots.push_back(tensor == kAbsent ? -1 : plain(tensor));
        }
        for (int tensor : node.outputs) {
            const Argument argument = tensor == kAbsent ? Argument{} : facts_.argument(tensor);
            out.push_back({argument.type, argument.dims, nullptr});
            out_slots.push_back(tensor == kAbsent ? -1 : new_plain(tensor));
        }
        add_step(std::make_unique<PlainStep>(node, in, out, in_slots, out_slots),
                 node.kind + " \"" + node.name + "\" in fp32");
    }

    void plan_quantize(const Node& node) {
        const int out = node.outputs[0];
        if (const Bytes* from = unmerged_ ? nullptr : bytes_behind(node.inputs[0])) {
            uint8_t table[256];
            const Grid& grid = facts_.integers(out)->grid;
            for (int i = 0; i < 256; i++) {
                table[i] = quantize_one(dequantize_one(static_cast<uint8_t>(i), from->grid), grid);
            }
            const Bytes source = *from;
            add_step(table_step(source, new_bytes(out), table), "QuantizeLinear \"" + node.name + "\"");
            return;
        }
        // A Clip of the integers is part of it.
        int made = out;
        const int clip = facts_.only_consumer(out);
        if (clip >= 0 && graph_.nodes[clip].kind == "Clip" &&
            facts_.integers(graph_.nodes[clip].outputs[0])) {
            facts_.absorb(clip);
            made = graph_.nodes[clip].outputs[0];
        }
        const int from = plain(node.inputs[0]);
        add_step(quantize_step(from, facts_.dims(out), new_bytes(made)),
                 "QuantizeLinear \"" + node.name + "\"");
    }

    void plan_integer_clip(const Node& node) {
        const Bytes from = bytes_[node.inputs[0]];
        const Grid& grid = facts_.integers(node.outputs[0])->grid;
        uint8_t table[256];
        for (int i = 0; i < 256; i++)
            table[i] = static_cast<uint8_t>(std::clamp(i, grid.lowest, grid.highest));
        add_step(table_step(from, new_bytes(node.outputs[0]), table), "Clip \"" + node.name + "\"");
    }

    // ---- Products.

    bool plan_product(int number) {
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

    void emit_product(const Node& node, int source, const Weights& weights, const std::vector<float>& bias,
                      const Chain& chain, const std::string& label) {
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
            std::copy(chain.table, chain.table + 256, epilogue.table);
        }
        add_step(conv_step(from, window, packed(node.inputs[1], weights, from.grid), epilogue, target),
                 label);
    }

    PackedPointer packed(int tensor, const Weights& weights, const Grid& grid) {
        const std::lock_guard<std::mutex> lock(engine_.mutex);
        PackedPointer& found = engine_.packed[{tensor, grid.zero, grid.highest, instruction_set()}];
        if (!found) found = pack_weights(weights.shape, weights.integers.data(), grid);
        return found;
    }

    // The weights of a convolution or a linear layer; false where they are no constant integers.
    bool read_weights(const Node& node, Weights* weights) const {
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
        if (node.kind == "Gemm" &&
            (node.i("transA", 0) || node.f("alpha", 1) != 1 || node.f("beta", 1) != 1)) {
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
        for (int64_t o = 0; o < outputs; o++)
            weights->scale[o] = scale->as<float>()[scale->count() == 1 ? 0 : o];
        return read_integers(dequantize, *tensor, outputs, by_rows, &weights->integers);
    }

    bool read_integers(const Node& dequantize, const Tensor& tensor, int64_t outputs, bool by_rows,
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

    // A product of two tensors of integers, both computed.
    bool plan_matmul(const Node& node) {
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

    // ---- Pools, sums, tables.

    bool plan_average(int number) {
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

    bool is_image_mean(const Node& node) const {
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

    bool plan_max(int number) {
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

    bool plan_pair(int number) {
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

    bool plan_concat(int number) {
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

    bool plan_table(int number) {
        const Chain chain = table_chain(facts_, number);
        if (!chain.to_integers || bytes_[chain.before_table].slot < 0) return false;
        const Bytes from = bytes_[chain.before_table];
        emit_with(number, chain, [this, from, chain](const std::string& label) {
            add_step(table_step(from, new_bytes(chain.output), chain.table), label);
        });
        return true;
    }

    // [N, C, 1, 1] to [N, C], which is the same bytes.
    bool plan_flatten(int number) {
        const Node& node = graph_.nodes[number];
        if (node.kind != "Reshape" && node.kind != "Flatten" && node.kind != "Squeeze") return false;
        const Bytes* bytes = bytes_behind(node.inputs[0]);
        const Dims &from = facts_.dims(node.inputs[0]), &to = facts_.dims(node.outputs[0]);
        if (!bytes || from.rank != 4 || from[2] * from[3] != 1 || to != Dims{from[0], from[1]}) return false;
        const Chain chain = rounded_chain(facts_, node.outputs[0], false);
        if (!chain.to_integers) return false;
        emit_with(number, chain, [this, from = *bytes, chain](const std::string& label) {
            uint8_t table[256];
            const Bytes& made = new_bytes(chain.output);
            for (int i = 0; i < 256; i++) {
                table[i] = quantize_one(dequantize_one(static_cast<uint8_t>(i), from.grid), made.grid);
            }
            add_step(table_step(from, made, table), label);
        });
        return true;
    }

    Engine& engine_;
    const Graph& graph_;
    Facts facts_;
    bool unmerged_;
    std::vector<int> plain_;                      // slots of tensors in ONNX's order, or -1
    std::vector<Bytes> bytes_;                    // of integer tensors
    std::vector<std::function<void()>> waiting_;  // by the last node of a step
    PlanParts parts_;
};

}  // namespace

PlanParts make_steps(Engine& engine, const std::vector<Dims>& inputs, const std::vector<int>& wanted,
                     bool unmerged) {
    return Planner(engine, inputs, wanted, unmerged).make(wanted);
}

}  // namespace lowbit::runtime
