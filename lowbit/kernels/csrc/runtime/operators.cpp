// The operators by name, and what their files share; see operators.h.
#include "runtime/operators.h"

namespace lowbit::runtime {
namespace {

Table make_table() {
    Table table;
    add_elementwise(table);
    add_quantization(table);
    add_movement(table);
    add_joins(table);
    add_layers(table);
    add_reductions(table);
    add_resize(table);
    return table;
}

}  // namespace

const Operator* find_operator(const std::string& kind) {
    static const Table table = make_table();
    const auto found = table.find(kind);
    return found == table.end() ? nullptr : &found->second;
}

Dims broadcast(const Dims& a, const Dims& b, const Node& node) {
    Dims dims = a.rank >= b.rank ? a : b;
    const Dims& other = a.rank >= b.rank ? b : a;
    for (int axis = 1; axis <= other.rank; axis++) {
        int64_t& size = dims[dims.rank - axis];
        const int64_t second = other[other.rank - axis];
        check(size == second || size == 1 || second == 1,
              node.describe() + " cannot combine " + to_string(a) + " and " + to_string(b));
        size = size == 1 ? second : size;
    }
    check_dims(dims, node.describe());
    return dims;
}

const Argument& need(const Arguments& in, size_t number, const Node& node) {
    check(present(in, number), node.describe() + " lacks its input " + std::to_string(number + 1));
    return in[number];
}

void need_type(const Argument& argument, Type type, const Node& node) {
    check(argument.type == type, node.describe() + " of " + type_name(argument.type) +
                                     " is not supported, only of " + type_name(type));
}

std::vector<int64_t> constant_ints(const Arguments& in, size_t number, const Node& node) {
    const Tensor* tensor = need(in, number, node).constant;
    check(tensor && (tensor->type == Type::int64 || tensor->type == Type::int32),
          node.describe() + ": its input " + std::to_string(number + 1) + " must be constant integers");
    check(tensor->dims.rank <= 1,
          node.describe() + ": its input " + std::to_string(number + 1) + " is no list");
    const int64_t count = tensor->count();
    if (tensor->type == Type::int32) return {tensor->as<int32_t>(), tensor->as<int32_t>() + count};
    return {tensor->as<int64_t>(), tensor->as<int64_t>() + count};
}

std::vector<int64_t> view_ints(const Views& in, size_t number) {
    if (!present(in, number)) return {};
    const int64_t count = in[number].count();
    if (in[number].type == Type::int32) return {in[number].as<int32_t>(), in[number].as<int32_t>() + count};
    return {in[number].as<int64_t>(), in[number].as<int64_t>() + count};
}

std::vector<int64_t> optional_ints(const Arguments& in, size_t number, const Node& node) {
    return present(in, number) ? constant_ints(in, number, node) : std::vector<int64_t>{};
}

void row_major(const Dims& dims, int64_t* step) {
    int64_t size = 1;
    for (int axis = dims.rank - 1; axis >= 0; axis--) step[axis] = size, size *= dims[axis];
}

int64_t broadcast_matrix(int64_t index, const Dims& result, const Dims& operand) {
    int64_t found = 0, step = 1;
    for (int axis = result.rank - 3, own = operand.rank - 3; axis >= 0; axis--, own--) {
        const int64_t at = index % result[axis];
        index /= result[axis];
        if (own < 0) continue;
        found += operand[own] == 1 ? 0 : at * step;
        step *= operand[own];
    }
    return found;
}

}  // namespace lowbit::runtime
