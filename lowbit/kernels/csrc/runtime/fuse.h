// Which operators become one step: facts about the graph's tensors, and the chains that follow an operator.
//
// A value may disappear into a step only if one operator reads it and nobody asked for it. An *integer
// tensor* is what QuantizeLinear makes with one constant scale, or a Clip behind it; a DequantizeLinear with
// the same scale reads it.
#pragma once
#include "runtime/plan.h"

#include <set>

namespace lowbit::runtime {

struct IntegerTensor {
    Grid grid;               // of stored bytes
    bool is_signed = false;  // int8 in the file: stored with 128 added
};

class Facts {
  public:
    Facts(const Graph& graph, const std::vector<Dims>& inputs, const std::vector<int>& wanted,
          ThreadPool& pool);

    const Graph& graph() const { return graph_; }
    const Argument& argument(int tensor) const { return arguments_[tensor]; }
    const Dims& dims(int tensor) const { return arguments_[tensor].dims; }
    const Tensor* constant(int tensor) const { return tensor < 0 ? nullptr : arguments_[tensor].constant; }
    std::shared_ptr<const Tensor> shared_constant(int tensor) const { return constants_.at(tensor); }
    Arguments inputs_of(const Node& node) const;
    bool is_wanted(int tensor) const { return wanted_.count(tensor) > 0; }
    bool is_needed(int node) const { return needed_[node]; }
    bool is_folded(int node) const { return folded_[node]; }
    int producer(int tensor) const { return producers_[tensor]; }
    const std::vector<int>& consumers(int tensor) const { return consumers_[tensor]; }
    // The node that alone reads the tensor, unless it is part of a step already; or -1.
    int only_consumer(int tensor) const;
    bool is_absorbed(int node) const { return absorbed_[node]; }
    void absorb(int node) { absorbed_[node] = true; }
    const IntegerTensor* integers(int tensor) const;
    // The integer tensor whose values this tensor of floats has, or -1.
    int source(int tensor) const;

  private:
    void infer(int number, ThreadPool& pool);
    bool should_fold(const Node& node, const Arguments& in) const;
    void fold(const Node& node, const Arguments& in, Arguments& out, ThreadPool& pool);
    void find_needed();
    void find_integers();

    const Graph& graph_;
    std::vector<Argument> arguments_;
    std::map<int, std::shared_ptr<const Tensor>> constants_;
    std::vector<int> producers_;
    std::vector<std::vector<int>> consumers_;
    std::set<int> wanted_;
    std::vector<bool> needed_, folded_, absorbed_;
    std::map<int, IntegerTensor> integers_;
};

// What follows an operator inside of its step.
struct Chain {
    std::vector<int> nodes;  // absorbed, in order
    int output = -1;         // the tensor that the step gives: an integer tensor, or floats
    bool to_integers = false;
    std::vector<float> bias;  // of an addition behind the product, one per channel; or empty
    Unary first;
    int middle = -1, residual = -1;  // integer tensors
    Unary second;
    bool has_table = false;  // of bytes on the grid of `before_table` to those of `output`
    int before_table = -1;
    ByteTable table;
};

enum class ChannelAxis { second, last };

// Behind a product with so many output channels: bias, activation, residual sum, quantization, table.
Chain product_chain(const Facts& facts, int tensor, bool has_bias, int64_t channels, ChannelAxis axis);
// Behind a sum or a pool: one simple activation (if `activates`) and quantization; without it, an empty
// chain.
Chain rounded_chain(const Facts& facts, int tensor, bool activates);
// From a node that reads an integer tensor: functions of one number, then quantization, as a table.
Chain table_chain(const Facts& facts, int node);

}  // namespace lowbit::runtime
