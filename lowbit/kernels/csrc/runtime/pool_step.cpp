// Maximum and mean over windows of bytes; see quantized.h.
#include "runtime/byte_loops.h"
#include "runtime/byte_table.h"

#include <algorithm>

namespace lowbit::runtime {
namespace {

constexpr int64_t kBlock = 256;  // channels at a time

// Rows (or columns) of a window that lie in the image: tap t is at first + t * dilation.
struct Range {
    Range(int64_t first, int64_t taps, int64_t dilation, int64_t size) : first_(first), dilation_(dilation) {
        begin = first < 0 ? ceil_div(-first, dilation) : 0;
        end = std::min(taps, size - first <= 0 ? 0 : ceil_div(size - first, dilation));
    }
    int64_t at(int64_t tap) const { return first_ + tap * dilation_; }
    int64_t count() const { return std::max<int64_t>(end - begin, 0); }
    int64_t begin, end;

  private:
    int64_t first_, dilation_;
};

class PoolStep : public Step {
  public:
    PoolStep(const Bytes& from, const Window& window, const Bytes& to)
        : from_(from), window_(window), to_(to) {
        reads = {from.slot}, writes = {to.slot};
    }

  protected:
    // body(n, h, w, rows, columns) for every pixel of the result.
    template <class Body>
    void each_window(ThreadPool& pool, const Body& body) const {
        const Layout& x = from_.layout;
        pool.parallel_for(x.images * window_.out[0], [&](int64_t item) {
            const int64_t n = item / window_.out[0], h = item % window_.out[0];
            const Range rows(h * window_.stride[0] - window_.pad_before[0], window_.kernel[0],
                             window_.dilation[0], x.height);
            for (int64_t w = 0; w < window_.out[1]; w++) {
                const Range columns(w * window_.stride[1] - window_.pad_before[1], window_.kernel[1],
                                    window_.dilation[1], x.width);
                body(n, h, w, rows, columns);
            }
        });
    }

    Bytes from_;
    Window window_;
    Bytes to_;
};

class MaxPoolStep : public PoolStep {
  public:
    MaxPoolStep(const Bytes& from, const Window& window, const Bytes& to)
        : PoolStep(from, window, to), table_(from.grid, to.grid) {}
    void run(const Memory& memory, ThreadPool& pool) const override {
        const uint8_t* from = memory.at(from_.slot);
        uint8_t* to = memory.at(to_.slot);
        fill_halo(to_.layout, to_.grid.zero, to);
        const ByteLoops& loops = byte_loops();
        const int64_t bytes = to_.layout.stride;
        each_window(pool, [&](int64_t n, int64_t h, int64_t w, const Range& rows, const Range& columns) {
            uint8_t* y = to + to_.layout.offset(n, h, w);
            memset(y, 0, static_cast<size_t>(bytes));
            for (int64_t i = rows.begin; i < rows.end; i++) {
                for (int64_t j = columns.begin; j < columns.end; j++) {
                    loops.max(from + from_.layout.offset(n, rows.at(i), columns.at(j)), bytes, y);
                }
            }
            if (!table_.is_identity()) table_.apply(y, bytes, y);
        });
    }

  private:
    ByteTable table_;
};

class AveragePoolStep : public PoolStep {
  public:
    AveragePoolStep(const Bytes& from, const Window& window, bool count_pads, const Unary& activation,
                    const Bytes& to, bool to_float)
        : PoolStep(from, window, to), count_pads_(count_pads), to_float_(to_float), activation_(activation) {}

    void run(const Memory& memory, ThreadPool& pool) const override {
        const uint8_t* from = memory.at(from_.slot);
        uint8_t* to = memory.at(to_.slot);
        if (!to_float_) fill_halo(to_.layout, to_.grid.zero, to);
        const ByteLoops& loops = byte_loops();
        const int64_t channels = from_.layout.channels, plane = window_.out[0] * window_.out[1];
        each_window(pool, [&](int64_t n, int64_t h, int64_t w, const Range& rows, const Range& columns) {
            const int64_t values = rows.count() * columns.count();
            const int64_t count = std::max<int64_t>(count_pads_ ? padded(h, 0) * padded(w, 1) : values, 1);
            for (int64_t first = 0; first < channels; first += kBlock) {
                const int64_t now = std::min(kBlock, channels - first);
                int32_t sums[kBlock];
                std::fill(sums, sums + now, static_cast<int32_t>(-values * from_.grid.zero));
                for (int64_t i = rows.begin; i < rows.end; i++) {
                    if (!columns.count()) continue;
                    loops.sum(from + from_.layout.offset(n, rows.at(i), columns.at(columns.begin)) + first,
                              from_.layout.stride * window_.dilation[1], columns.count(), now, sums);
                }
                for (int64_t c = 0; c < now; c++) {
                    float v = static_cast<float>(sums[c]) * from_.grid.scale / static_cast<float>(count);
                    v = apply(activation_, v);
                    if (to_float_) {
                        const int64_t place = (n * channels + first + c) * plane + h * window_.out[1] + w;
                        memory.at<float>(to_.slot)[place] = v;
                    } else {
                        to[to_.layout.offset(n, h, w) + first + c] = quantize_one(v, to_.grid);
                    }
                }
            }
        });
    }

  private:
    // Taps of a window that are in the image or its padding: a window of ceil_mode may reach beyond.
    int64_t padded(int64_t index, int axis) const {
        const int64_t size = (axis ? from_.layout.width : from_.layout.height) + window_.pad_after[axis];
        const int64_t first = index * window_.stride[axis] - window_.pad_before[axis];
        return std::min(window_.kernel[axis], ceil_div(size - first, window_.dilation[axis]));
    }

    bool count_pads_, to_float_;
    Unary activation_;
};

}  // namespace

StepPointer max_pool_step(const Bytes& from, const Window& window, const Bytes& to) {
    return std::make_unique<MaxPoolStep>(from, window, to);
}

StepPointer average_pool_step(const Bytes& from, const Window& window, bool count_pads,
                              const Unary& activation, const Bytes& to, bool to_float) {
    return std::make_unique<AveragePoolStep>(from, window, count_pads, activation, to, to_float);
}

}  // namespace lowbit::runtime
