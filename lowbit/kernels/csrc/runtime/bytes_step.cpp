// Steps on bytes without weights: to and from fp32, tables, concatenation. See
// quantized.h.
#include "runtime/byte_loops.h"
#include "runtime/byte_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lowbit::runtime {
namespace {

#define LOWBIT_BYTE_LOOPS(name, target, multiplies)                                                          \
    target void quantize_##name(const float* x, int64_t n, const Rounding& to, uint8_t* y) {                 \
        if (multiplies && to.reciprocal.is_exact) return quantize_loop<multiplies>(x, n, to, y);             \
        quantize_loop<false>(x, n, to, y);                                                                   \
    }                                                                                                        \
    target void quantize_pixels_##name(const float* x, int64_t plane, int64_t channels, int64_t n,           \
                                       const Rounding& to, uint8_t* y) {                                     \
        if (multiplies && to.reciprocal.is_exact)                                                            \
            return quantize_pixels_loop<multiplies>(x, plane, channels, n, to, y);                           \
        quantize_pixels_loop<false>(x, plane, channels, n, to, y);                                           \
    }                                                                                                        \
    target void dequantize_##name(const uint8_t* x, int64_t n, float scale, int zero, float* y) {            \
        dequantize_loop(x, n, scale, zero, y);                                                               \
    }                                                                                                        \
    target void max_##name(const uint8_t* x, int64_t n, uint8_t* y) { max_loop(x, n, y); }                   \
    target void sum_##name(const uint8_t* x, int64_t stride, int64_t pixels, int64_t channels,               \
                           int32_t* sums) {                                                                  \
        sum_loop(x, stride, pixels, channels, sums);                                                         \
    }                                                                                                        \
    const ByteLoops kLoops_##name = {quantize_##name, quantize_pixels_##name, dequantize_##name, max_##name, \
                                     sum_##name};

LOWBIT_BYTE_LOOPS(baseline, , false)
#if LOWBIT_X86
LOWBIT_BYTE_LOOPS(avx2, LOWBIT_TARGET_AVX2_FMA, true)
LOWBIT_BYTE_LOOPS(avx512, LOWBIT_TARGET_AVX512, true)
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
        : from_(from), is_image_(dims.rank == 4), to_(to), rounding_(to.grid, Reciprocal(to.grid)) {
        reads = {from}, writes = {to.slot};
    }
    void run(const Memory& memory, ThreadPool& pool) const override {
        uint8_t* to = memory.at(to_.slot);
        const float* values = memory.at<float>(from_);
        fill_halo(to_.layout, to_.grid.zero, to);
        const Layout& layout = to_.layout;
        const ByteLoops& loops = byte_loops();
        const int64_t h = layout.height, w = layout.width, c = layout.channels;
        pool.parallel_for(layout.images * h, [&](int64_t item) {
            const int64_t n = item / h, y = item % h;
            uint8_t* row = to + layout.offset(n, y, 0);
            if (!is_image_) return loops.quantize(values + n * c, c, rounding_, row);
            const float* from = values + (n * c * h + y) * w;
            if (layout.stride == 4) return loops.quantize_pixels(from, h * w, c, w, rounding_, row);
            for (int64_t first = 0; first < c; first += 4) {
                quantize_four(from + first * h * w, std::min<int64_t>(4, c - first), loops, row + first);
            }
        });
    }

  private:
    // Four channels of a row of pixels.
    void quantize_four(const float* from, int64_t channels, const ByteLoops& loops, uint8_t* to) const {
        const Layout& layout = to_.layout;
        uint8_t words[4 * kBlock];
        for (int64_t i = 0; i < layout.width; i += kBlock) {
            const int64_t now = std::min(kBlock, layout.width - i);
            loops.quantize_pixels(from + i, layout.height * layout.width, channels, now, rounding_, words);
            for (int64_t j = 0; j < now; j++) memcpy(to + (i + j) * layout.stride, words + 4 * j, 4);
        }
    }

    int from_;
    bool is_image_;
    Bytes to_;
    Rounding rounding_;
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
    TableStep(const Bytes& from, const Bytes& to, const ByteTable& table)
        : from_(from), to_(to), table_(table) {
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
            table_.apply(x, layout.width * layout.stride, y);
        });
    }

  private:
    Bytes from_, to_;
    ByteTable table_;
};

class ConcatStep : public Step {
  public:
    ConcatStep(const std::vector<Bytes>& parts, const Bytes& to) : parts_(parts), to_(to) {
        for (const Bytes& part : parts) {
            reads.push_back(part.slot);
            tables_.emplace_back(part.grid, to.grid);
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
                    tables_[i].apply(x, part.layout.channels, y);
                    y += part.layout.channels;
                }
            }
        });
    }

  private:
    std::vector<Bytes> parts_;
    Bytes to_;
    std::vector<ByteTable> tables_;
};

}  // namespace

const ByteLoops& byte_loops() {
#if LOWBIT_X86
    if (instruction_set() >= InstructionSet::avx512) return kLoops_avx512;
    static const bool has_fma = __builtin_cpu_supports("fma");
    if (instruction_set() >= InstructionSet::avx2 && has_fma) return kLoops_avx2;
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

uint8_t quantize_one(float value, const Grid& grid) {
    return static_cast<uint8_t>(rounded<false>(value, Rounding(grid)));
}

Reciprocal::Reciprocal(const Grid& grid) {
#if LOWBIT_X86
    if (!__builtin_cpu_supports("fma")) return;
#else
    return;
#endif
    high = static_cast<float>(1 / static_cast<double>(grid.scale));
    low = static_cast<float>(1 / static_cast<double>(grid.scale) - high);
    if (!std::isfinite(high) || std::fpclassify(high) != FP_NORMAL) return;
    is_exact = true;
    // Both are within two units in the last place of v / scale, so that they can only round differently near
    // a half: all floats there are compared.
    constexpr int kNear = 8;
    for (int k = grid.lowest - grid.zero - 1; k <= grid.highest - grid.zero; k++) {
        float v = grid.scale * (static_cast<float>(k) + 0.5f);
        for (int i = 0; i < kNear; i++) v = std::nextafterf(v, -INFINITY);
        for (int i = 0; i <= 2 * kNear; i++, v = std::nextafterf(v, INFINITY)) {
            const float quick = std::fmaf(v, high, v * low);
            is_exact = is_exact && std::nearbyintf(quick) == std::nearbyintf(v / grid.scale);
        }
    }
}

StepPointer quantize_step(int from, const Dims& dims, const Bytes& to) {
    return std::make_unique<QuantizeStep>(from, dims, to);
}
StepPointer dequantize_step(const Bytes& from, const Dims& dims, int to) {
    return std::make_unique<DequantizeStep>(from, dims, to);
}
StepPointer export_step(const Bytes& from, const Dims& dims, bool is_signed, int to) {
    return std::make_unique<ExportStep>(from, dims, is_signed, to);
}
StepPointer table_step(const Bytes& from, const Bytes& to, const ByteTable& table) {
    return std::make_unique<TableStep>(from, to, table);
}
StepPointer concat_step(const std::vector<Bytes>& parts, const Bytes& to) {
    return std::make_unique<ConcatStep>(parts, to);
}

}  // namespace lowbit::runtime
