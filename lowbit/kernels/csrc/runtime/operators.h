// Operators on plain tensors, row-major as ONNX has them: in fp32, and on int64 for the arithmetic of shapes.
//
// Each has two functions: `infer` gives the types and sizes of the results, and reads constants where sizes
// depend on values; `run` computes. Constants are folded with the same functions. Sums are added in the order
// of the reduced axes; where many numbers are added (means, norms, softmax), in fp64, and transcendental
// functions are computed in fp64 and rounded once, so that NumPy gives the same bits.
#pragma once
#include "runtime/onnx_reader.h"
#include "runtime/thread_pool.h"

namespace lowbit::runtime {

// What is known of an input or output before anything runs.
struct Argument {
    Type type = Type::none;  // none: left out
    Dims dims;
    const Tensor* constant = nullptr;
};

struct View {
    Type type = Type::none;
    Dims dims;
    void* data = nullptr;

    template <class T>
    T* as() const {
        return static_cast<T*>(data);
    }
    int64_t count() const { return dims.count(); }
    explicit operator bool() const { return type != Type::none; }
};

using Arguments = std::vector<Argument>;
using Views = std::vector<View>;

struct Operator {
    void (*infer)(const Node& node, const Arguments& in, Arguments& out);
    void (*run)(const Node& node, const Views& in, const Views& out, ThreadPool& pool);
};

// Null for an unknown operator.
const Operator* find_operator(const std::string& kind);

// ---- An elementwise function of one number, also where it is part of an integer step.

enum class Function {
    identity,
    clamp,
    hard_swish,
    hard_sigmoid,
    leaky_relu,
    elu,
    sigmoid,
    tanh,
    erf,
    exp,
    log,
    sqrt,
    abs,
    neg,
    floor,
    ceil,
    round,
    reciprocal,
    softplus,
    softsign,
    mish,
    gelu,
    gelu_tanh
};

struct Unary {
    Function function = Function::identity;
    float a = 0, b = 0;  // clamp: the bounds; others: alpha and beta
};

// Whether the node is such a function of its first input, and which. Bounds of a Clip must be constants.
bool as_unary(const Node& node, const Arguments& in, Unary* unary);

float apply(const Unary& unary, float x);

// ---- Helpers of the operators' files.

using Table = std::map<std::string, Operator>;
void add_elementwise(Table& table);
void add_quantization(Table& table);
void add_movement(Table& table);
void add_joins(Table& table);
void add_layers(Table& table);
void add_reductions(Table& table);
void add_resize(Table& table);

Dims broadcast(const Dims& a, const Dims& b, const Node& node);
// For matrix number `index` of a product's result [..., rows, columns]: the number of the operand's matrix.
int64_t broadcast_matrix(int64_t index, const Dims& result, const Dims& operand);
const Argument& need(const Arguments& in, size_t number, const Node& node);
void need_type(const Argument& argument, Type type, const Node& node);
// The integers of an input that must be a constant (int64), such as axes.
std::vector<int64_t> constant_ints(const Arguments& in, size_t number, const Node& node);
// The same where the input may be left out; and of an input that is there, when the operator runs.
std::vector<int64_t> optional_ints(const Arguments& in, size_t number, const Node& node);
std::vector<int64_t> view_ints(const Views& in, size_t number);
// How far apart the elements of each axis are.
void row_major(const Dims& dims, int64_t* step);
inline bool present(const Arguments& in, size_t number) {
    return number < in.size() && in[number].type != Type::none;
}
inline bool present(const Views& in, size_t number) {
    return number < in.size() && in[number].type != Type::none;
}

// The window of a convolution or pool over [N, C, H, W].
struct Window {
    int64_t kernel[2], stride[2], dilation[2], pad_before[2], pad_after[2];
    int64_t out[2];
};

// Reads kernel_shape, strides, dilations, pads, auto_pad and ceil_mode; `kernel` overrides kernel_shape.
Window window_of(const Node& node, const Dims& image, const int64_t* kernel);

}  // namespace lowbit::runtime
