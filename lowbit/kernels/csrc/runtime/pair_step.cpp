// Sums and products of two tensors of bytes; see quantized.h.
#include "runtime/byte_loops.h"
#include "runtime/requantize.h"

#include <cmath>
#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::runtime {
namespace {

struct Pair {
    bool product;
    Grid a, b;
    Unary activation;  // identity or clamp
    Grid to;
    // With this, values are rounded without a division, and the activation's bounds are bounds of the byte.
    bool is_short = false;
    Reciprocal reciprocal;
    uint8_t lowest = 0, highest = 255;

    // Pixels of so many bytes; those of b are b_step bytes apart, or 0 if all meet the same one.
    void run_portable(const uint8_t* x, const uint8_t* y, int64_t b_step, int64_t pixels, int64_t bytes,
                      uint8_t* z) const {
        for (int64_t p = 0; p < pixels; p++, x += bytes, y += b_step, z += bytes) {
            for (int64_t i = 0; i < bytes; i++) {
                const float left = dequantize_one(x[i], a), right = dequantize_one(y[i], b);
                z[i] = quantize_one(apply(activation, product ? left * right : left + right), to);
            }
        }
    }
};

#if LOWBIT_X86
LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE __m256 values_avx2(const uint8_t* from, __m256i zero, __m256 scale) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(bytes, zero)), scale);
}

// Sixteen bytes of each pixel at a time.
template <bool kProduct>
LOWBIT_TARGET_AVX2_FMA LOWBIT_INLINE void pair_avx2(const Pair& pair, const uint8_t* a, const uint8_t* b,
                                                    int64_t b_step, int64_t pixels, int64_t bytes,
                                                    uint8_t* y) {
    const __m256i a_zero = _mm256_set1_epi32(pair.a.zero), b_zero = _mm256_set1_epi32(pair.b.zero);
    const __m256 a_scale = _mm256_set1_ps(pair.a.scale), b_scale = _mm256_set1_ps(pair.b.scale);
    const __m256 high = _mm256_set1_ps(pair.reciprocal.high), low = _mm256_set1_ps(pair.reciprocal.low);
    const BytePack pack(pair.to.zero, pair.lowest, pair.highest);
    for (int64_t first = 0; first < bytes; first += kChannels) {
        __m256 right[2] = {values_avx2(b + first, b_zero, b_scale),
                           values_avx2(b + first + 8, b_zero, b_scale)};
        for (int64_t p = 0; p < pixels; p++) {
            __m256i steps[2];
            for (int half = 0; half < 2; half++) {
                const int64_t at = first + 8 * half;
                if (b_step) right[half] = values_avx2(b + p * b_step + at, b_zero, b_scale);
                const __m256 left = values_avx2(a + p * bytes + at, a_zero, a_scale);
                const __m256 v =
                    kProduct ? _mm256_mul_ps(left, right[half]) : _mm256_add_ps(left, right[half]);
                steps[half] = _mm256_cvtps_epi32(_mm256_fmadd_ps(v, high, _mm256_mul_ps(v, low)));
            }
            _mm_storeu_si128(reinterpret_cast<__m128i*>(y + p * bytes + first), pack(steps));
        }
    }
}

LOWBIT_TARGET_AVX2_FMA void multiply_avx2(const Pair& pair, const uint8_t* a, const uint8_t* b,
                                          int64_t b_step, int64_t pixels, int64_t bytes, uint8_t* y) {
    pair_avx2<true>(pair, a, b, b_step, pixels, bytes, y);
}
LOWBIT_TARGET_AVX2_FMA void add_avx2(const Pair& pair, const uint8_t* a, const uint8_t* b, int64_t b_step,
                                     int64_t pixels, int64_t bytes, uint8_t* y) {
    pair_avx2<false>(pair, a, b, b_step, pixels, bytes, y);
}
#endif

class PairStep : public Step {
  public:
    PairStep(bool product, const Bytes& a, const Bytes& b, const Unary& activation, const Bytes& to)
        : a_(a),
          b_(b),
          to_(to),
          pair_{product, a.grid, b.grid, activation, to.grid, false, Reciprocal(to.grid)} {
        reads = {a.slot, b.slot}, writes = {to.slot};
        const double left = 255.0 * a.grid.scale, right = 255.0 * b.grid.scale;
        const double largest = product ? left * right : left + right;
        pair_.is_short =
            pair_.reciprocal.is_exact && to.layout.stride % kChannels == 0 && largest / to.grid.scale < 1e9;
        pair_.lowest = static_cast<uint8_t>(to.grid.lowest);
        pair_.highest = static_cast<uint8_t>(to.grid.highest);
        if (activation.function == Function::clamp) {  // rounding is monotone
            pair_.lowest = quantize_one(activation.a, to.grid);
            pair_.highest = quantize_one(activation.b, to.grid);
        }
    }

    void run(const Memory& memory, ThreadPool& pool) const override {
        uint8_t* to = memory.at(to_.slot);
        fill_halo(to_.layout, to_.grid.zero, to);
        const Layout& layout = to_.layout;
        const bool one_pixel = b_.layout.height * b_.layout.width == 1 && layout.height * layout.width > 1;
        pool.parallel_for(layout.images * layout.height, [&](int64_t item) {
            const int64_t n = item / layout.height, h = item % layout.height;
            run_row(memory.at(a_.slot) + a_.layout.offset(n, h, 0),
                    memory.at(b_.slot) + b_.layout.offset(n, one_pixel ? 0 : h, 0),
                    one_pixel ? 0 : layout.stride, to + layout.offset(n, h, 0));
        });
    }

  private:
    void run_row(const uint8_t* a, const uint8_t* b, int64_t b_step, uint8_t* y) const {
        const int64_t pixels = to_.layout.width, bytes = to_.layout.stride;
#if LOWBIT_X86
        if (pair_.is_short && instruction_set() != InstructionSet::baseline) {
            return (pair_.product ? multiply_avx2 : add_avx2)(pair_, a, b, b_step, pixels, bytes, y);
        }
#endif
        pair_.run_portable(a, b, b_step, pixels, bytes, y);
    }

    Bytes a_, b_, to_;
    Pair pair_;
};

}  // namespace

StepPointer pair_step(bool product, const Bytes& a, const Bytes& b, const Unary& activation,
                      const Bytes& to) {
    return std::make_unique<PairStep>(product, a, b, activation, to);
}

}  // namespace lowbit::runtime
