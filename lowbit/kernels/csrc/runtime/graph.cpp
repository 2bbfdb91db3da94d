// Attributes of nodes, names and sizes of types; see onnx_reader.h and runtime.h.
#include "runtime/onnx_reader.h"

#include <algorithm>

namespace lowbit::runtime {

int64_t Node::i(const char* attribute, int64_t otherwise) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? otherwise : found->second.i;
}

float Node::f(const char* attribute, float otherwise) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? otherwise : found->second.f;
}

std::string Node::s(const char* attribute, const char* otherwise) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? otherwise : found->second.s;
}

std::vector<int64_t> Node::ints(const char* attribute) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? std::vector<int64_t>{} : found->second.ints;
}

std::string Node::describe() const { return kind + " (node \"" + name + "\")"; }

int Graph::find(const std::string& name) const {
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? kAbsent : static_cast<int>(found - names.begin());
}

int64_t type_bytes(Type type) {
    switch (type) {
        case Type::float32:
        case Type::int32:
            return 4;
        case Type::int64:
            return 8;
        default:
            return 1;
    }
}

const char* type_name(Type type) {
    switch (type) {
        case Type::float32:
            return "float32";
        case Type::uint8:
            return "uint8";
        case Type::int8:
            return "int8";
        case Type::int32:
            return "int32";
        case Type::int64:
            return "int64";
        case Type::boolean:
            return "bool";
        case Type::uint4:
            return "uint4";
        case Type::int4:
            return "int4";
        default:
            return "nothing";
    }
}

std::string to_string(const Dims& dims) {
    std::string text = "[";
    for (int axis = 0; axis < dims.rank; axis++) text += (axis ? ", " : "") + std::to_string(dims[axis]);
    return text + "]";
}

void check_dims(const Dims& dims, const std::string& what) {
    int64_t count = 1;
    for (int axis = 0; axis < dims.rank; axis++) {
        check(dims[axis] >= 0 && dims[axis] <= kMaxElements,
              what + " has the impossible shape " + to_string(dims));
        count *= dims[axis];
        check(count <= kMaxElements, what + " of " + to_string(dims) + " is too large");
    }
}

}  // namespace lowbit::runtime
