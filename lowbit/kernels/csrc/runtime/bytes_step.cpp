// Steps on bytes without weights: to and from fp32, tables, sums and products, concatenation. See
// quantized.h.
#include "runtime/byte_loops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace lowbit::runtime {
namespace {

#define LOWBIT_BYTE_LOOPS(name, target)                                                                    \
    target void quantize_##name(const float* x, int64_t n, const Rounding& to, uint8_t* y) {               \
        quantize_loop(x, n, to, y);                                                                        \
    }                                                                                                      \
    target void dequantize_##name(const uint8_t* x, int64_t n, float scale, int zero, float* y) {          \
        dequantize_loop(x, n, scale, zero, y);                                                             \
    }                                                                                                      \
    target void pair_##name(const Pair& pair, const uint8_t* a, const uint8_t* b, int64_t n, uint8_t* y) { \
        pair_loop(pair, a, b, n, y);                                                                       \
    }                                                                                                      \
    target void max_##name(const uint8_t* x, int64_t n, uint8_t* y) { max_loop(x, n, y); }                 \
    target void sum_##name(const uint8_t* x, int64_t n, int32_t* sums) { sum_loop(x, n, sums); }           \
    const ByteLoops kLoops_##name = {quantize_##name, dequantize_##name, pair_##name, max_##name, sum_##name};

LOWBIT_BYTE_LOOPS(baseline, )
#if LOWBIT_X86
LOWBIT_BYTE_LOOPS(avx2, LOWBIT_TARGET_AVX2)
LOWBIT_BYTE_LOOPS(avx512, LOWBIT_TARGET_AVX512)
#endif

constexpr int64_t kBlock = 256;  // values that are converted at a time

// Calls row(offset of the bytes, offset of the values, pixels, their distance in bytes, channel) for runs of
// pixels of one channel: [N, C, H, W] has the pixels of a channel together. Other ranks are [rows][C]: one
// run per row.
template <class Row>
void each_plane_row(const Layout& layout, bool is_image, ThreadPool& pool, const Row& row) {
    const int64_t h = layout.height, w = layout.width, c = layout.channels;
    pool.parallel_for(layout.images * h, [&](int64_t item) {
        const int64_t n = item / h, y = item % h, from = layout.offset(n, y, 0);
        if (!is_image) return row(from, item * w * c, c, int64_t{1});
        for (int64_t channel = 0; channel < c; channel++) {
            row(from + channel, ((n * c + channel) * h + y) * w, w, layout.stride);
        }
    });
}

class QuantizeStep : public Step {
  public:
    QuantizeStep(int from, const Dims& dims, const Bytes& to)
        : from_(from), is_image_(dims.rank == 4), to_(to) {
        reads = {from}, writes = {to.slot};
    }
    void run(const Memory& memory, ThreadPool& pool) const override {
        uint8_t* to = memory.at(to_.slot);
        const float* values = memory.at<float>(from_);
        fill_halo(to_.layout, to_.grid.zero, to);
        const Rounding rounding(to_.grid);
        const ByteLoops& loops = byte_loops();
        if (is_image_) return quantize_images(values, rounding, loops, pool, to);
        const int64_t channels = to_.layout.channels;
        pool.parallel_for(to_.layout.images, [&](int64_t n) {
            loops.quantize(values + n * channels, channels, rounding, to + to_.layout.offset(n, 0, 0));
        });
    }

  private:
    // Four channels of some pixels are rounded, then interleaved.
    void quantize_images(const float* values, const Rounding& rounding, const ByteLoops& loops,
                         ThreadPool& pool, uint8_t* to) const {
        const Layout& layout = to_.layout;
        const int64_t h = layout.height, w = layout.width, c = layout.channels;
        pool.parallel_for(layout.images * h, [&](int64_t item) {
            const int64_t n = item / h, y = item % h;
            uint8_t block[4][kBlock] = {};
            for (int64_t first = 0; first < c; first += 4) {
                const int64_t together = std::min<int64_t>(4, c - first);
                for (int64_t i = 0; i < w; i += kBlock) {
                    const int64_t now = std::min(kBlock, w - i);
                    for (int64_t k = 0; k < together; k++) {
                        loops.quantize(values + ((n * c + first + k) * h + y) * w + i, now, rounding,
                                       block[k]);
                    }
                    uint8_t* pixel = to + layout.offset(n, y, i) + first;
                    for (int64_t j = 0; j < now; j++, pixel += layout.stride) {
                        const uint8_t four[4] = {block[0][j], block[1][j], block[2][j], block[3][j]};
                        memcpy(pixel, four, 4);
                    }
                }
            }
        });
    }

    int from_;
    bool is_image_;
    Bytes to_;
};

class DequantizeStep : public Step {
  public:
    DequantizeStep(const Bytes& from, const Dims& dims, int to)
        : from_(from), is_image_(dims.rank == 4), to_(to) {
        reads = {from.slot}, writes = {to};
    }
    void run(const Memory& memory, ThreadPool& pool) const override {
        const uint8_t* from = memory.at(from_.slot);
        float* values = memory.at<float>(to_);
        const ByteLoops& loops = byte_loops();
        const Grid& grid = from_.grid;
        each_plane_row(
            from_.layout, is_image_, pool, [&](int64_t bytes, int64_t first, int64_t count, int64_t step) {
                if (step == 1)
                    return loops.dequantize(from + bytes, count, grid.scale, grid.zero, values + first);
                uint8_t block[kBlock];
                for (int64_t i = 0; i < count; i += kBlock) {
                    const int64_t now = std::min(kBlock, count - i);
                    for (int64_t j = 0; j < now; j++) block[j] = from[bytes + (i + j) * step];
                    loops.dequantize(block, now, grid.scale, grid.zero, values + first + i);
                }
            });
    }

  private:
    Bytes from_;
    bool is_image_;
    int to_;
};

class ExportStep : public Step {
  public:
    ExportStep(const Bytes& from, const Dims& dims, bool is_signed, int to)
        : from_(from), is_image_(dims.rank == 4), shift_(is_signed ? 128 : 0), to_(to) {
        reads = {from.slot}, writes = {to};
    }
    void run(const Memory& memory, ThreadPool& pool) const override {
        const uint8_t* from = memory.at(from_.slot);
        uint8_t* to = memory.at(to_);
        each_plane_row(from_.layout, is_image_, pool,
                       [&](int64_t bytes, int64_t first, int64_t count, int64_t step) {
                           for (int64_t i = 0; i < count; i++)
                               to[first + i] = static_cast<uint8_t>(from[bytes + i * step] - shift_);
                       });
    }

  private:
    Bytes from_;
    bool is_image_;
    int shift_, to_;
};

// ---- Bytes to bytes: rows of pixels, channels with their padding.

class TableStep : public Step {
  public:
    TableStep(const Bytes& from, const Bytes& to, const uint8_t* table) : from_(from), to_(to) {
        std::copy(table, table + 256, table_.begin());
        reads = {from.slot}, writes = {to.slot};
    }
    void run(const Memory& memory, ThreadPool& pool) const override {
        uint8_t* to = memory.at(to_.slot);
        fill_halo(to_.layout, to_.grid.zero, to);
        const Layout& layout = to_.layout;
        pool.parallel_for(layout.images * layout.height, [&](int64_t item) {
            const int64_t n = item / layout.height, h = item % layout.height;
            const uint8_t* x = memory.at(from_.slot) + from_.layout.offset(n, h, 0);
            uint8_t* y = to + layout.offset(n, h, 0);
            for (int64_t i = 0; i < layout.width * layout.stride; i++) y[i] = table_[x[i]];
        });
    }

  private:
    Bytes from_, to_;
    std::array<uint8_t, 256> table_;
};

class PairStep : public Step {
  public:
    PairStep(bool product, const Bytes& a, const Bytes& b, const Unary& activation, const Bytes& to)
        : a_(a), b_(b), to_(to), pair_{product, a.grid.scale, b.grid.scale, 0,
                                       0,       a.grid.zero,  b.grid.zero,  Rounding(to.grid)} {
        const bool clamps = activation.function == Function::clamp;
        pair_.lowest = clamps ? activation.a : -std::numeric_limits<float>::infinity();
        pair_.highest = clamps ? activation.b : std::numeric_limits<float>::infinity();
        reads = {a.slot, b.slot}, writes = {to.slot};
    }
    void run(const Memory& memory, ThreadPool& pool) const override {
        uint8_t* to = memory.at(to_.slot);
        fill_halo(to_.layout, to_.grid.zero, to);
        const Layout& layout = to_.layout;
        const ByteLoops& loops = byte_loops();
        const bool one_pixel = b_.layout.height * b_.layout.width == 1 && layout.height * layout.width > 1;
        pool.parallel_for(layout.images * layout.height, [&](int64_t item) {
            const int64_t n = item / layout.height, h = item % layout.height;
            const uint8_t* a = memory.at(a_.slot) + a_.layout.offset(n, h, 0);
            const uint8_t* b = memory.at(b_.slot) + b_.layout.offset(n, one_pixel ? 0 : h, 0);
            uint8_t* y = to + layout.offset(n, h, 0);
            if (!one_pixel) return loops.pair(pair_, a, b, layout.width * layout.stride, y);
            for (int64_t w = 0; w < layout.width; w++) {
                loops.pair(pair_, a + w * layout.stride, b, layout.stride, y + w * layout.stride);
            }
        });
    }

  private:
    Bytes a_, b_, to_;
    Pair pair_;
};

class ConcatStep : public Step {
  public:
    ConcatStep(const std::vector<Bytes>& parts, const Bytes& to) : parts_(parts), to_(to) {
        for (const Bytes& part : parts) {
            reads.push_back(part.slot);
            std::array<uint8_t, 256> table;
            for (int i = 0; i < 256; i++) {
                table[i] = quantize_one(dequantize_one(static_cast<uint8_t>(i), part.grid), to.grid);
            }
            tables_.push_back(table);
        }
        writes = {to.slot};
    }
    void run(const Memory& memory, ThreadPool& pool) const override {
        uint8_t* to = memory.at(to_.slot);
        fill_halo(to_.layout, to_.grid.zero, to);
        const Layout& layout = to_.layout;
        pool.parallel_for(layout.images * layout.height, [&](int64_t item) {
            const int64_t n = item / layout.height, h = item % layout.height;
            for (int64_t w = 0; w < layout.width; w++) {
                uint8_t* y = to + layout.offset(n, h, w);
                for (size_t i = 0; i < parts_.size(); i++) {
                    const Bytes& part = parts_[i];
                    const uint8_t* x = memory.at(part.slot) + part.layout.offset(n, h, w);
                    for (int64_t c = 0; c < part.layout.channels; c++) *y++ = tables_[i][x[c]];
                }
            }
        });
    }

  private:
    std::vector<Bytes> parts_;
    Bytes to_;
    std::vector<std::array<uint8_t, 256>> tables_;
};

}  // namespace

const ByteLoops& byte_loops() {
#if LOWBIT_X86
    if (instruction_set() >= InstructionSet::avx512) return kLoops_avx512;
    if (instruction_set() >= InstructionSet::avx2) return kLoops_avx2;
#endif
    return kLoops_baseline;
}

void pixel_offsets(const Layout& layout, int64_t first, int64_t count, int64_t* offsets) {
    int64_t w = first % layout.width, h = first / layout.width % layout.height;
    int64_t at = layout.offset(first / (layout.width * layout.height), h, w);
    const int64_t next_row = layout.row_bytes() - (layout.width - 1) * layout.stride;
    const int64_t next_image = (layout.top + layout.bottom) * layout.row_bytes();
    for (int64_t i = 0; i < count; i++) {
        offsets[i] = at;
        if (++w < layout.width) {
            at += layout.stride;
            continue;
        }
        w = 0, at += next_row;
        if (++h == layout.height) h = 0, at += next_image;
    }
}

void fill_halo(const Layout& layout, int zero, uint8_t* tensor) {
    if (!layout.has_halo()) return;
    const size_t row = static_cast<size_t>(layout.row_bytes());
    for (int64_t n = 0; n < layout.images; n++) {
        uint8_t* at = tensor + n * layout.image_bytes();
        memset(at, zero, row * static_cast<size_t>(layout.top));
        at += layout.top * layout.row_bytes();
        for (int64_t h = 0; h < layout.height; h++, at += row) {
            memset(at, zero, static_cast<size_t>(layout.left * layout.stride));
            memset(at + (layout.left + layout.width) * layout.stride, zero,
                   static_cast<size_t>(layout.right * layout.stride));
        }
        memset(at, zero, row * static_cast<size_t>(layout.bottom));
    }
}

uint8_t quantize_one(float value, const Grid& grid) { return round_to_byte(value, Rounding(grid)); }

StepPointer quantize_step(int from, const Dims& dims, const Bytes& to) {
    return std::make_unique<QuantizeStep>(from, dims, to);
}
StepPointer dequantize_step(const Bytes& from, const Dims& dims, int to) {
    return std::make_unique<DequantizeStep>(from, dims, to);
}
StepPointer export_step(const Bytes& from, const Dims& dims, bool is_signed, int to) {
    return std::make_unique<ExportStep>(from, dims, is_signed, to);
}
StepPointer table_step(const Bytes& from, const Bytes& to, const uint8_t* table) {
    return std::make_unique<TableStep>(from, to, table);
}
StepPointer pair_step(bool product, const Bytes& a, const Bytes& b, const Unary& activation,
                      const Bytes& to) {
    return std::make_unique<PairStep>(product, a, b, activation, to);
}
StepPointer concat_step(const std::vector<Bytes>& parts, const Bytes& to) {
    return std::make_unique<ConcatStep>(parts, to);
}

}  // namespace lowbit::runtime
