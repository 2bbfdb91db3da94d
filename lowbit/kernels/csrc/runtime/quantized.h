// Tensors of unsigned bytes: their grid, their layout in the arena, and what a step is.
//
// A tensor [N, C, H, W] is stored as [N][H + halo][W + halo][C rounded up]; one of another rank as [rows][C],
// where C is its last axis. The halo holds the zero point, so that convolutions need not know where an image
// ends: whoever writes a tensor fills it. Bytes of int8 tensors are stored with 128 added.
#pragma once
#include "runtime/operators.h"

namespace lowbit::runtime {

// The values of stored bytes: (byte - zero) * scale, for bytes from lowest to highest.
struct Grid {
    float scale = 1;
    int zero = 0, lowest = 0, highest = 255;

    bool operator==(const Grid& other) const {
        return scale == other.scale && zero == other.zero && lowest == other.lowest &&
               highest == other.highest;
    }
};

// Division by a grid's scale as two operations: v * high + v * low, where high + low is 1 / scale to 48 bits.
// The rounded result is that of the division for every v, which is checked around every boundary when a plan
// is made; where it is not (or the processor lacks FMA), `is_exact` is false and the division itself is used.
struct Reciprocal {
    Reciprocal() = default;
    explicit Reciprocal(const Grid& grid);
    float high = 0, low = 0;
    bool is_exact = false;
};

struct Layout {
    int64_t images = 1, height = 1, width = 1, channels = 1;
    int64_t stride = 1;  // bytes of a pixel
    int64_t top = 0, bottom = 0, left = 0, right = 0;

    static int64_t stride_of(int64_t channels) {
        return channels <= 4 ? 4 : channels <= 8 ? 8 : round_up(channels, 16);
    }
    int64_t row_bytes() const { return (left + width + right) * stride; }
    int64_t image_bytes() const { return (top + height + bottom) * row_bytes(); }
    int64_t origin() const { return top * row_bytes() + left * stride; }
    // Kernels may read a vector beyond the last pixel.
    int64_t bytes() const { return images * image_bytes() + 64; }
    int64_t pixels() const { return images * height * width; }
    int64_t offset(int64_t n, int64_t h, int64_t w) const {
        return n * image_bytes() + origin() + h * row_bytes() + w * stride;
    }
    bool has_halo() const { return top || bottom || left || right; }
};

// The offsets of `count` pixels from number `first` on, counted through all images.
void pixel_offsets(const Layout& layout, int64_t first, int64_t count, int64_t* offsets);

void fill_halo(const Layout& layout, int zero, uint8_t* tensor);

// round(value / scale) on the grid, as a byte.
uint8_t quantize_one(float value, const Grid& grid);
inline float dequantize_one(uint8_t byte, const Grid& grid) {
    return static_cast<float>(static_cast<int>(byte) - grid.zero) * grid.scale;
}

// ---- Steps.

// Where the tensors are while a plan runs, by slot.
struct Memory {
    uint8_t* const* slots;

    template <class T = uint8_t>
    T* at(int slot) const {
        return reinterpret_cast<T*>(slots[slot]);
    }
};

struct Bytes {  // a tensor of bytes that a step reads or writes
    int slot = -1;
    Layout layout;
    Grid grid;
    bool repeats_first = false;  // three channels, and the first again in the fourth byte of a pixel
};

class Step {
  public:
    virtual ~Step() = default;
    virtual void run(const Memory& memory, ThreadPool& pool) const = 0;
    virtual int64_t weight_bytes() const { return 0; }

    std::string label;               // the operators that it computes
    std::vector<int> reads, writes;  // slots
};

using StepPointer = std::unique_ptr<Step>;
class ByteTable;  // byte_table.h

// fp32 in ONNX's order to bytes and back. `dims` is the tensor's shape.
StepPointer quantize_step(int from, const Dims& dims, const Bytes& to);
StepPointer dequantize_step(const Bytes& from, const Dims& dims, int to);
// Bytes in ONNX's order, with 128 subtracted for int8: a result that the user asked for.
StepPointer export_step(const Bytes& from, const Dims& dims, bool is_signed, int to);

// to = table[from]
StepPointer table_step(const Bytes& from, const Bytes& to, const ByteTable& table);
// Sum or product of two tensors; the second may have one pixel per image, which is used for all of them.
StepPointer pair_step(bool product, const Bytes& a, const Bytes& b, const Unary& activation, const Bytes& to);
// Parts with their tables, one after the other along the channels.
StepPointer concat_step(const std::vector<Bytes>& parts, const Bytes& to);
// Maximum over windows, then a table.
StepPointer max_pool_step(const Bytes& from, const Window& window, const Bytes& to);
// Mean over windows; to fp32 [N, C, H, W] in slot `to.slot` with `to_float`.
StepPointer average_pool_step(const Bytes& from, const Window& window, bool count_pads,
                              const Unary& activation, const Bytes& to, bool to_float);

}  // namespace lowbit::runtime
