// Tensors and their memory, single nodes, and what runs in fp32. See planner.h and fuse.h.
#include "runtime/planner.h"

#include <algorithm>

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

}  // namespace

Planner::Planner(Engine& engine, const std::vector<Dims>& inputs, const std::vector<int>& wanted,
                 bool unmerged)
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

PlanParts Planner::make(const std::vector<int>& wanted) {
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

int Planner::add_slot(const Slot& slot) {
    parts_.slots.push_back(slot);
    return static_cast<int>(parts_.slots.size()) - 1;
}

int Planner::new_slot(int64_t bytes) {
    Slot slot;
    slot.bytes = bytes;
    return add_slot(slot);
}

void Planner::add_step(StepPointer step, const std::string& label) {
    step->label = label;
    parts_.steps.push_back(std::move(step));
}

int Planner::new_plain(int tensor) {
    const Argument& argument = facts_.argument(tensor);
    return plain_[tensor] = new_slot(argument.dims.count() * type_bytes(argument.type));
}

int Planner::plain(int tensor) {
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

Bytes& Planner::new_bytes(int tensor) {
    Bytes& made = bytes_[tensor];
    made.grid = facts_.integers(tensor)->grid;
    made.layout = layout_of(tensor);
    check(made.layout.bytes() <= kMaxElements, "\"" + graph_.names[tensor] + "\" is too large");
    made.slot = new_slot(made.layout.bytes());
    return made;
}

Layout Planner::layout_of(int tensor) const {
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

void Planner::add_halo(const Window& win, Layout* layout) {
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

const Bytes* Planner::bytes_behind(int tensor) const {
    const int source = facts_.source(tensor);
    return source >= 0 && bytes_[source].slot >= 0 ? &bytes_[source] : nullptr;
}

void Planner::visit(int number) {
    const Node& node = graph_.nodes[number];
    if (node.kind == "DequantizeLinear" && (facts_.source(node.outputs[0]) >= 0 || is_weight(node))) return;
    if (plan_product(number) || plan_average(number)) return;
    if (node.kind == "QuantizeLinear" && facts_.integers(node.outputs[0])) return plan_quantize(node);
    if (node.kind == "Clip" && facts_.integers(node.outputs[0])) return plan_integer_clip(node);
    if (!unmerged_ && (plan_max(number) || plan_pair(number) || plan_concat(number) || plan_table(number) ||
                       plan_flatten(number))) {
        return;
    }
    plan_plain(node);
}

bool Planner::is_weight(const Node& node) const {
    const Arguments in = facts_.inputs_of(node);
    return std::all_of(in.begin(), in.end(),
                       [](const Argument& one) { return one.type == Type::none || one.constant != nullptr; });
}

void Planner::emit_with(int number, const Chain& chain, std::function<void(const std::string&)> emit) {
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

void Planner::plan_plain(const Node& node) {
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

void Planner::plan_quantize(const Node& node) {
    // A Clip of the integers is part of it.
    int made = node.outputs[0];
    const int clip = facts_.only_consumer(made);
    if (clip >= 0 && graph_.nodes[clip].kind == "Clip" && facts_.integers(graph_.nodes[clip].outputs[0])) {
        facts_.absorb(clip);
        made = graph_.nodes[clip].outputs[0];
    }
    const std::string label = "QuantizeLinear \"" + node.name + "\"";
    if (const Bytes* found = unmerged_ ? nullptr : bytes_behind(node.inputs[0])) {
        const Bytes from = *found;
        const Bytes& to = new_bytes(made);
        return add_step(table_step(from, to, ByteTable(from.grid, to.grid)), label);
    }
    const int from = plain(node.inputs[0]);
    Bytes& to = new_bytes(made);
    to.repeats_first = to.layout.channels == 3 && facts_.dims(made).rank == 4;  // as quantize_step() does it
    add_step(quantize_step(from, facts_.dims(made), to), label);
}

void Planner::plan_integer_clip(const Node& node) {
    const Bytes from = bytes_[node.inputs[0]];
    const Grid& grid = facts_.integers(node.outputs[0])->grid;
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = static_cast<uint8_t>(std::clamp(i, grid.lowest, grid.highest));
    add_step(table_step(from, new_bytes(node.outputs[0]), ByteTable(table)), "Clip \"" + node.name + "\"");
}

PlanParts make_steps(Engine& engine, const std::vector<Dims>& inputs, const std::vector<int>& wanted,
                     bool unmerged) {
    return Planner(engine, inputs, wanted, unmerged).make(wanted);
}

}  // namespace lowbit::runtime
