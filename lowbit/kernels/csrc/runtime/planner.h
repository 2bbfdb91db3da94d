// Planner: from a graph to steps. Its functions are in planner.cpp, planner_products.cpp and
// planner_bytes.cpp.
//
// Nodes are visited in the graph's order. A step is made when its last operator is reached: by then all that
// any of its operators reads has been computed. A function plan_…(number) tries to make a step that begins
// with this node, and says whether it could.
#pragma once
#include "runtime/fuse.h"

#include <functional>

namespace lowbit::runtime {

// The constant weights of a product.
struct Weights {
    ConvShape shape;
    std::vector<int16_t> integers;  // [output][input][tap]
    std::vector<float> scale;       // by output channel
};

class Planner {
  public:
    Planner(Engine& engine, const std::vector<Dims>& inputs, const std::vector<int>& wanted, bool unmerged);
    PlanParts make(const std::vector<int>& wanted);

  private:
    // ---- Slots and tensors (planner.cpp).
    int add_slot(const Slot& slot);
    int new_slot(int64_t bytes);
    void add_step(StepPointer step, const std::string& label);
    int new_plain(int tensor);
    // The tensor in ONNX's order: its slot, and a step that makes it so, if need be.
    int plain(int tensor);
    // Memory for an integer tensor, with the halo that the convolutions that read it need.
    Bytes& new_bytes(int tensor);
    Layout layout_of(int tensor) const;
    static void add_halo(const Window& win, Layout* layout);
    // The bytes that a tensor of floats is made of, or null.
    const Bytes* bytes_behind(int tensor) const;

    // ---- Nodes (planner.cpp).
    void visit(int number);
    // Constants that products read as integers; others get them as floats when they read them.
    bool is_weight(const Node& node) const;
    // Runs `emit` when the last node of the chain is reached; its other nodes need no steps.
    void emit_with(int number, const Chain& chain, std::function<void(const std::string&)> emit);
    void plan_plain(const Node& node);
    void plan_quantize(const Node& node);
    void plan_integer_clip(const Node& node);

    // ---- Products (planner_products.cpp).
    bool plan_product(int number);
    void emit_product(const Node& node, int source, const Weights& weights, const std::vector<float>& bias,
                      const Chain& chain, const std::string& label);
    PackedPointer packed(int tensor, const Weights& weights, const Bytes& source);
    // The weights of a convolution or a linear layer; false where they are no constant integers.
    bool read_weights(const Node& node, Weights* weights) const;
    bool read_integers(const Node& dequantize, const Tensor& tensor, int64_t outputs, bool by_rows,
                       std::vector<int16_t>* integers) const;
    // A product of two tensors of integers, both computed.
    bool plan_matmul(const Node& node);

    // ---- Pools, sums, tables (planner_bytes.cpp).
    bool plan_average(int number);
    bool is_image_mean(const Node& node) const;
    bool plan_max(int number);
    bool plan_pair(int number);
    bool plan_concat(int number);
    bool plan_table(int number);
    // [N, C, 1, 1] to [N, C], which is the same bytes.
    bool plan_flatten(int number);

    Engine& engine_;
    const Graph& graph_;
    Facts facts_;
    bool unmerged_;
    std::vector<int> plain_;                      // slots of tensors in ONNX's order, or -1
    std::vector<Bytes> bytes_;                    // of integer tensors
    std::vector<std::function<void()>> waiting_;  // by the last node of a step
    PlanParts parts_;
};

}  // namespace lowbit::runtime
