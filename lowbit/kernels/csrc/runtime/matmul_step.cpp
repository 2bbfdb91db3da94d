// See matmul_step.h. A row of the result at a time: sums of int32 along the columns.
#include "runtime/matmul_step.h"

#include <algorithm>

namespace lowbit::runtime {
namespace {

constexpr int64_t kColumns = 256;

LOWBIT_INLINE void add_row_loop(int32_t left, const uint8_t* right, uint8_t flip, int32_t zero, int64_t count,
                                int32_t* __restrict sums) {
    for (int64_t i = 0; i < count; i++) {
        sums[i] += left * (static_cast<int32_t>(static_cast<uint8_t>(right[i] ^ flip)) - zero);
    }
}
void add_row_portable(int32_t left, const uint8_t* right, uint8_t flip, int32_t zero, int64_t count,
                      int32_t* sums) {
    add_row_loop(left, right, flip, zero, count, sums);
}
#if LOWBIT_X86
LOWBIT_TARGET_AVX2 void add_row_avx2(int32_t left, const uint8_t* right, uint8_t flip, int32_t zero,
                                     int64_t count, int32_t* sums) {
    add_row_loop(left, right, flip, zero, count, sums);
}
#endif

class MatMulStep : public Step {
  public:
    MatMulStep(const MatMulOperand& a, const MatMulOperand& b, const Dims& dims, int to)
        : a_(a), b_(b), dims_(dims), to_(to) {
        reads = {a.slot, b.slot}, writes = {to};
    }

    void run(const Memory& memory, ThreadPool& pool) const override {
        const int64_t rows = dims_[dims_.rank - 2], columns = dims_[dims_.rank - 1];
        const int64_t inner = a_.dims[a_.dims.rank - 1];
        // int8 in ONNX's order has another sign bit than the stored bytes of its grid.
        const uint8_t a_flip = a_.integers.is_signed ? 128 : 0, b_flip = b_.integers.is_signed ? 128 : 0;
        const float scale = a_.integers.grid.scale * b_.integers.grid.scale;
        auto add_row = add_row_portable;
#if LOWBIT_X86
        if (instruction_set() != InstructionSet::baseline) add_row = add_row_avx2;
#endif
        pool.parallel_for(dims_.product(0, dims_.rank - 1), [&](int64_t item) {
            const int64_t matrix = item / rows;
            const uint8_t* left =
                memory.at(a_.slot) + (broadcast_matrix(matrix, dims_, a_.dims) * rows + item % rows) * inner;
            const uint8_t* right =
                memory.at(b_.slot) + broadcast_matrix(matrix, dims_, b_.dims) * inner * columns;
            float* to = memory.at<float>(to_) + item * columns;
            for (int64_t first = 0; first < columns; first += kColumns) {
                const int64_t now = std::min(kColumns, columns - first);
                int32_t sums[kColumns] = {};
                for (int64_t k = 0; k < inner; k++) {
                    const int32_t value = static_cast<uint8_t>(left[k] ^ a_flip) - a_.integers.grid.zero;
                    add_row(value, right + k * columns + first, b_flip, b_.integers.grid.zero, now, sums);
                }
                for (int64_t i = 0; i < now; i++) to[first + i] = static_cast<float>(sums[i]) * scale + 0.0f;
            }
        });
    }

  private:
    MatMulOperand a_, b_;
    Dims dims_;
    int to_;
};

}  // namespace

StepPointer matmul_step(const MatMulOperand& a, const MatMulOperand& b, const Dims& dims, int to) {
    check(a.dims[a.dims.rank - 1] < (1 << 15),
          "a matrix product of " + to_string(a.dims) + " would overflow 32 bits");
    return std::make_unique<MatMulStep>(a, b, dims, to);
}

}  // namespace lowbit::runtime
