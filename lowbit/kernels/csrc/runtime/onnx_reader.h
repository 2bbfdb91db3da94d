// An ONNX file as a graph: nodes in order, tensors by number, constants.
#pragma once
#include "runtime/runtime.h"

#include <map>
#include <memory>

namespace lowbit::runtime {

struct Attribute {
    int64_t i = 0;
    float f = 0;
    std::string s;
    std::vector<int64_t> ints;
    std::vector<float> floats;
    std::shared_ptr<Tensor> tensor;
};

constexpr int kAbsent = -1;  // an optional input that is left out

struct Node {
    std::string kind, name;
    std::vector<int> inputs, outputs;  // numbers of tensors
    std::map<std::string, Attribute> attributes;

    int64_t i(const char* attribute, int64_t otherwise) const;
    float f(const char* attribute, float otherwise) const;
    std::string s(const char* attribute, const char* otherwise) const;
    std::vector<int64_t> ints(const char* attribute) const;
    bool has(const char* attribute) const { return attributes.count(attribute) > 0; }
    // For messages: its operator and its name, or else that of its first output.
    std::string describe() const;
};

struct GraphInput {
    int tensor;
    Type type;
    Dims dims;  // -1 where the file leaves a size open
};

struct Graph {
    std::vector<Node> nodes;  // a node's inputs come from earlier ones
    std::vector<std::string> names;
    std::map<int, std::shared_ptr<const Tensor>> constants;
    std::vector<GraphInput> inputs;
    std::vector<int> outputs;
    int64_t opset = 0;

    // The number of a tensor by its name; kAbsent if there is none.
    int find(const std::string& name) const;
};

// Throws an Error for bytes that are no ONNX model, or one with parts that this runtime does not know.
Graph read_onnx(const uint8_t* bytes, size_t size);

}  // namespace lowbit::runtime
