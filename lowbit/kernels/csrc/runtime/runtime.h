// lowbit's inference runtime: an exported ONNX file in integers, from layer to layer.
//
// A file is read once (Graph) and planned for inputs of concrete sizes (Plan): shapes become constants,
// constants are folded, and what is between two quantizations becomes one step. A step reads and writes
// unsigned bytes in NHWC, in one arena; nothing is allocated while these steps run. Operators without an
// integer form run in fp32.
//
//   lowbit/runtime/lowbit_runtime.h   the C interface, which api.cpp implements
//   runtime.h                this file: the types that all files share
//   protobuf.h, onnx_reader.h, .cpp   bytes to a Graph; every length is checked, since files may be damaged
//   graph.cpp                attributes of nodes; names and sizes of types
//   operators.h, .cpp        operators in fp32 (and shapes in int64): sizes of the results, and the loops
//   operators_*.cpp          ... elementwise, changes of type, movement of data, layers, reductions, resizing
//   quantized.h              tensors of bytes: their layout in memory, their grid; what a step is
//   bytes_step.cpp, pair_step.cpp, pool_step.cpp, matmul_step.cpp   steps without weights
//   byte_loops.h, byte_table.h, .cpp   loops over bytes; functions of one byte
//   conv_step.h, .cpp        convolutions and linear layers over the micro-kernels of gemm/
//   conv_weights.cpp, microkernels.cpp   packing; weights of 4 bits, and of 7 and 8 bits without VNNI
//   depthwise_step.cpp       depthwise convolutions
//   requantize.h, .cpp       int32 sums to the bytes of the next layer
//   fuse.h, facts.cpp, fuse.cpp   what is known of each tensor, and which operators become one step
//   planner.h, planner*.cpp  from a graph to steps
//   plan.h, plan.cpp         a plan: the arena; running
//   thread_pool.h, .cpp      the engine's own threads
//
// The arithmetic is that of the project's integer reference, in fp32 without contraction, in this order:
//
//   product        v = float(sum of integer products) * (input scale * weight scale) + bias
//   activation     v = min(max(v, lowest), highest), or the function's own formula
//   requantize     q = clamp(rint(v / scale), lowest - zero, highest - zero) + zero,  rint to even
//   sum            v + float(q - zero) * scale
//   average        v = float(sum of (q - zero)) * scale / float(count)
//
// lowbit/runtime/reference.py computes the same in NumPy; tests compare the two for every instruction set and
// number of threads, bit by bit.
#pragma once
#include "common/common.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace lowbit::runtime {

// What the user can mend: a damaged file, an unknown operator, sizes that do not fit.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

inline void check(bool holds, const std::string& message) {
    if (!holds) throw Error(message);
}

// Element types, with ONNX's numbers. Integers of 4 bits are kept one per byte.
enum class Type {
    none = 0,
    float32 = 1,
    uint8 = 2,
    int8 = 3,
    int32 = 6,
    int64 = 7,
    boolean = 9,
    uint4 = 21,
    int4 = 22
};

int64_t type_bytes(Type type);
const char* type_name(Type type);

constexpr int kMaxRank = 8;
constexpr int64_t kMaxElements = int64_t{1} << 31;

// The sizes of a tensor; no memory of its own.
struct Dims {
    int rank = 0;
    int64_t size[kMaxRank] = {};

    Dims() = default;
    Dims(std::initializer_list<int64_t> sizes) {
        for (int64_t one : sizes) push(one);
    }
    void push(int64_t one) {
        check(rank < kMaxRank, "a tensor has more than 8 dimensions");
        size[rank++] = one;
    }
    int64_t operator[](int axis) const { return size[axis]; }
    int64_t& operator[](int axis) { return size[axis]; }
    bool operator==(const Dims& other) const {
        return rank == other.rank && std::equal(size, size + rank, other.size);
    }
    bool operator!=(const Dims& other) const { return !(*this == other); }

    int64_t product(int first, int last) const {
        int64_t count = 1;
        for (int axis = first; axis < last; axis++) count *= size[axis];
        return count;
    }
    int64_t count() const { return product(0, rank); }
};

std::string to_string(const Dims& dims);

// Throws unless every size is 0 or more and the tensor is not larger than any that a machine would hold.
void check_dims(const Dims& dims, const std::string& what);

// An axis counted from the end where negative.
inline int resolve_axis(int64_t axis, int rank, const std::string& what) {
    check(axis >= -rank && axis < std::max(rank, 1), what + ": the axis is outside of the tensor");
    return static_cast<int>(axis < 0 ? axis + rank : axis);
}

// A constant.
struct Tensor {
    Type type = Type::none;
    Dims dims;
    std::vector<uint8_t> bytes;

    Tensor() = default;
    Tensor(Type of, Dims sizes) : type(of), dims(sizes) {
        check_dims(dims, "a tensor");
        bytes.resize(static_cast<size_t>(dims.count() * type_bytes(type)));
    }
    template <class T>
    const T* as() const {
        return reinterpret_cast<const T*>(bytes.data());
    }
    template <class T>
    T* as() {
        return reinterpret_cast<T*>(bytes.data());
    }
    int64_t count() const { return dims.count(); }
};

}  // namespace lowbit::runtime
