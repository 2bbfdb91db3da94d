// Functions of one number, and arithmetic with broadcasting; see operators.h.
#include "runtime/operators.h"

#include <cmath>
#include <limits>

namespace lowbit::runtime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Named {
    const char* kind;
    Function function;
    float a, b;  // defaults of alpha and beta
};
const Named kFunctions[] = {
    {"Identity", Function::identity, 0, 0},
    {"Dropout", Function::identity, 0, 0},
    {"Relu", Function::clamp, 0, kInfinity},
    {"HardSwish", Function::hard_swish, 0, 0},
    {"HardSigmoid", Function::hard_sigmoid, 0.2f, 0.5f},
    {"LeakyRelu", Function::leaky_relu, 0.01f, 0},
    {"Elu", Function::elu, 1, 0},
    {"Sigmoid", Function::sigmoid, 0, 0},
    {"Tanh", Function::tanh, 0, 0},
    {"Erf", Function::erf, 0, 0},
    {"Exp", Function::exp, 0, 0},
    {"Log", Function::log, 0, 0},
    {"Sqrt", Function::sqrt, 0, 0},
    {"Abs", Function::abs, 0, 0},
    {"Neg", Function::neg, 0, 0},
    {"Floor", Function::floor, 0, 0},
    {"Ceil", Function::ceil, 0, 0},
    {"Round", Function::round, 0, 0},
    {"Reciprocal", Function::reciprocal, 0, 0},
    {"Softplus", Function::softplus, 0, 0},
    {"Softsign", Function::softsign, 0, 0},
    {"Mish", Function::mish, 0, 0},
    {"Gelu", Function::gelu, 0, 0},
};

const Named* find_function(const std::string& kind) {
    for (const Named& one : kFunctions) {
        if (kind == one.kind) return &one;
    }
    return nullptr;
}

Unary named_unary(const Node& node, const Named& named) {
    Unary unary{named.function, named.a, named.b};
    if (named.function != Function::clamp) {
        unary.a = node.f("alpha", named.a);
        unary.b = node.f("beta", named.b);
    }
    if (named.function == Function::gelu && node.s("approximate", "none") == "tanh") {
        unary.function = Function::gelu_tanh;
    }
    return unary;
}

void infer_same(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    out[0].type = x.type, out[0].dims = x.dims;
    if (node.kind != "Identity" && node.kind != "Dropout") need_type(x, Type::float32, node);
    for (size_t i = 1; i < out.size(); i++)
        out[i].type = Type::boolean, out[i].dims = x.dims;  // Dropout's mask
}

void run_unary(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const Unary unary = named_unary(node, *find_function(node.kind));
    if (unary.function == Function::identity) {
        memcpy(out[0].data, in[0].data, static_cast<size_t>(in[0].count() * type_bytes(in[0].type)));
        return;
    }
    const float* x = in[0].as<float>();
    float* y = out[0].as<float>();
    for (int64_t i = 0, count = in[0].count(); i < count; i++) y[i] = apply(unary, x[i]);
}

void infer_clip(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    check(x.type == Type::float32 || x.type == Type::uint8 || x.type == Type::int8 || x.type == Type::int64,
          node.describe() + " of " + type_name(x.type) + " is not supported");
    for (size_t i = 1; i < 3; i++) {
        if (!present(in, i)) continue;
        check(in[i].type == x.type && in[i].dims.count() == 1,
              node.describe() + ": a bound does not fit the values");
    }
    out[0].type = x.type, out[0].dims = x.dims;
}

template <class T>
void clip_as(const Views& in, const Views& out, T lowest, T highest) {
    if (present(in, 1)) lowest = *in[1].as<T>();
    if (present(in, 2)) highest = *in[2].as<T>();
    const T* x = in[0].as<T>();
    T* y = out[0].as<T>();
    for (int64_t i = 0, count = in[0].count(); i < count; i++) {
        const T value = x[i] < lowest ? lowest : x[i];
        y[i] = value > highest ? highest : value;
    }
}

void run_clip(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    switch (in[0].type) {
        case Type::uint8:
            return clip_as<uint8_t>(in, out, 0, 255);
        case Type::int8:
            return clip_as<int8_t>(in, out, -128, 127);
        case Type::int64:
            return clip_as<int64_t>(in, out, INT64_MIN, INT64_MAX);
        default:
            return clip_as<float>(in, out, node.f("min", -kInfinity), node.f("max", kInfinity));
    }
}

// ---- Arithmetic of several tensors.

enum class Binary { add, sub, mul, div, pow, max, min, prelu };

// Sums of int64 wrap around: sizes in a damaged file may be any numbers.
template <class T>
T combine(Binary op, T a, T b) {
    if constexpr (std::is_same_v<T, int64_t>) {
        const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
        if (op == Binary::add) return static_cast<int64_t>(x + y);
        if (op == Binary::sub) return static_cast<int64_t>(x - y);
        if (op == Binary::mul || op == Binary::prelu) return static_cast<int64_t>(x * y);
        if (op == Binary::div && b == -1) return static_cast<int64_t>(0 - x);
        if (op == Binary::pow) return 0;  // refused by infer_binary
    }
    switch (op) {
        case Binary::add:
            return a + b;
        case Binary::sub:
            return a - b;
        case Binary::mul:
            return a * b;
        case Binary::div:
            return a / b;
        case Binary::max:
            return a > b ? a : b;
        case Binary::min:
            return a < b ? a : b;
        case Binary::prelu:
            return a < 0 ? a * b : a;
        case Binary::pow:
            return static_cast<T>(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    return a;
}

Binary binary_of(const std::string& kind) {
    static const std::map<std::string, Binary> known = {
        {"Add", Binary::add}, {"Sum", Binary::add}, {"Sub", Binary::sub},
        {"Mul", Binary::mul}, {"Div", Binary::div}, {"Pow", Binary::pow},
        {"Max", Binary::max}, {"Min", Binary::min}, {"PRelu", Binary::prelu}};
    return known.at(kind);
}

void infer_binary(const Node& node, const Arguments& in, Arguments& out) {
    out[0] = need(in, 0, node);
    for (size_t i = 1; i < in.size(); i++) {
        const Argument& other = need(in, i, node);
        check(other.type == out[0].type, node.describe() + " has operands of different types");
        out[0].dims = broadcast(out[0].dims, other.dims, node);
    }
    out[0].constant = nullptr;
    check(out[0].type == Type::float32 || out[0].type == Type::int64,
          node.describe() + " of " + type_name(out[0].type) + " is not supported");
    check(out[0].type == Type::float32 || (node.kind != "Pow" && node.kind != "PRelu"),
          node.describe() + " of int64 is not supported");
    check(in.size() == 2 || node.kind == "Max" || node.kind == "Min" || node.kind == "Sum" || in.size() == 1,
          node.describe() + " takes two operands");
}

// Steps between elements of an operand, 0 along broadcast axes; the last axis is walked in the inner loop.
void broadcast_strides(const Dims& of, const Dims& to, int64_t* strides) {
    int64_t step = 1;
    for (int axis = to.rank - 1, own = of.rank - 1; axis >= 0; axis--, own--) {
        const int64_t size = own >= 0 ? of[own] : 1;
        strides[axis] = size == 1 ? 0 : step;
        step *= size;
    }
}

template <class T>
void combine_all(Binary op, const T* a, const Dims& a_dims, const T* b, const Dims& b_dims, T* y,
                 const Dims& dims) {
    int64_t sa[kMaxRank] = {}, sb[kMaxRank] = {}, at[kMaxRank] = {};
    broadcast_strides(a_dims, dims, sa);
    broadcast_strides(b_dims, dims, sb);
    const int last = dims.rank - 1;
    const int64_t inner = dims.rank ? dims[last] : 1, outer = dims.rank ? dims.product(0, last) : 1;
    const int64_t da = dims.rank ? sa[last] : 0, db = dims.rank ? sb[last] : 0;
    for (int64_t row = 0; row < outer; row++, y += inner) {
        int64_t from_a = 0, from_b = 0;
        for (int axis = 0; axis < last; axis++) from_a += at[axis] * sa[axis], from_b += at[axis] * sb[axis];
        for (int64_t i = 0; i < inner; i++) y[i] = combine(op, a[from_a + i * da], b[from_b + i * db]);
        for (int axis = last - 1; axis >= 0 && ++at[axis] == dims[axis]; axis--) at[axis] = 0;
    }
}

template <class T>
void run_binary_as(Binary op, const Views& in, const View& out) {
    if (in.size() == 1) {
        memcpy(out.data, in[0].data, static_cast<size_t>(out.count()) * sizeof(T));
        return;
    }
    combine_all(op, in[0].as<T>(), in[0].dims, in[1].as<T>(), in[1].dims, out.as<T>(), out.dims);
    for (size_t i = 2; i < in.size(); i++) {
        combine_all(op, out.as<T>(), out.dims, in[i].as<T>(), in[i].dims, out.as<T>(), out.dims);
    }
}

void run_binary(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const Binary op = binary_of(node.kind);
    if (out[0].type == Type::float32) return run_binary_as<float>(op, in, out[0]);
    if (op == Binary::div) {
        for (int64_t i = 0; i < in[1].count(); i++) {
            check(in[1].as<int64_t>()[i] != 0, node.describe() + " divides by 0");
        }
    }
    run_binary_as<int64_t>(op, in, out[0]);
}

}  // namespace

float apply(const Unary& unary, float x) {
    const double wide = x;
    switch (unary.function) {
        case Function::identity:
            return x;
        case Function::clamp: {
            const float above = x < unary.a ? unary.a : x;
            return above > unary.b ? unary.b : above;
        }
        case Function::hard_swish: {  // as Paddle computes it
            const float shifted = x + 3.0f, above = shifted < 0 ? 0 : shifted;
            return x * (above > 6.0f ? 6.0f : above) / 6.0f;
        }
        case Function::hard_sigmoid: {
            const float line = x * unary.a + unary.b, above = line < 0 ? 0 : line;
            return above > 1.0f ? 1.0f : above;
        }
        case Function::leaky_relu:
            return x < 0 ? x * unary.a : x;
        case Function::elu:
            return x < 0 ? unary.a * static_cast<float>(std::expm1(wide)) : x;
        case Function::sigmoid:
            return static_cast<float>(1 / (1 + std::exp(-wide)));
        case Function::tanh:
            return static_cast<float>(std::tanh(wide));
        case Function::erf:
            return static_cast<float>(std::erf(wide));
        case Function::exp:
            return static_cast<float>(std::exp(wide));
        case Function::log:
            return static_cast<float>(std::log(wide));
        case Function::sqrt:
            return std::sqrt(x);
        case Function::abs:
            return std::fabs(x);
        case Function::neg:
            return -x;
        case Function::floor:
            return std::floor(x);
        case Function::ceil:
            return std::ceil(x);
        case Function::round:
            return std::nearbyintf(x);
        case Function::reciprocal:
            return 1 / x;
        case Function::softplus:
            return static_cast<float>(wide > 0 ? wide + std::log1p(std::exp(-wide))
                                               : std::log1p(std::exp(wide)));
        case Function::softsign:
            return x / (1 + std::fabs(x));
        case Function::mish: {
            const double soft = wide > 0 ? wide + std::log1p(std::exp(-wide)) : std::log1p(std::exp(wide));
            return static_cast<float>(wide * std::tanh(soft));
        }
        case Function::gelu:
            return static_cast<float>(0.5 * wide * (1 + std::erf(wide * 0.70710678118654752440)));
        case Function::gelu_tanh:
            return static_cast<float>(
                0.5 * wide *
                (1 + std::tanh(0.79788456080286535588 * (wide + 0.044715 * wide * wide * wide))));
    }
    return x;
}

bool as_unary(const Node& node, const Arguments& in, Unary* unary) {
    if (node.kind == "Clip") {
        if (in.empty() || in[0].type != Type::float32) return false;
        *unary = {Function::clamp, node.f("min", -kInfinity), node.f("max", kInfinity)};
        for (size_t i = 1; i < 3; i++) {
            if (!present(in, i)) continue;
            const Tensor* bound = in[i].constant;
            if (!bound || bound->type != Type::float32 || bound->count() != 1) return false;
            (i == 1 ? unary->a : unary->b) = *bound->as<float>();
        }
        return true;
    }
    const Named* named = find_function(node.kind);
    if (!named || in.empty() || in[0].type != Type::float32) return false;
    *unary = named_unary(node, *named);
    return true;
}

void add_elementwise(Table& table) {
    for (const Named& one : kFunctions) table[one.kind] = {infer_same, run_unary};
    for (const char* kind : {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "PRelu"}) {
        table[kind] = {infer_binary, run_binary};
    }
    table["Clip"] = {infer_clip, run_clip};
}

}  // namespace lowbit::runtime
