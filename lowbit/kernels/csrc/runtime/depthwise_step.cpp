// Depthwise convolutions over bytes: 16 channels of a pixel at a time, taps in pairs. See conv_step.h.
//
// Weights are int16, [16 channels][pair of taps][16][2], in the order in which AVX2 interleaves two taps of
// 16 channels: 0-3 and 8-11, then 4-7 and 12-15. An odd number of taps ends with a pair whose second weight
// is 0.
#include "common/cpu.h"
#include "gemm/microkernel.h"
#include "runtime/conv_step.h"

#include <algorithm>
#if LOWBIT_X86
#include <immintrin.h>
#endif

namespace lowbit::runtime {
namespace {

constexpr int64_t kGroup = 16;
constexpr int kPixels = 4;  // computed together

// The place of channel c of 16 among the interleaved ones.
int64_t interleaved(int64_t c) { return (c & 3) | (c >> 1 & 4) | (c << 1 & 8); }

struct Taps {
    const int64_t* offsets;  // in pairs
    int64_t pairs;
    const int16_t* weights;
    const int32_t* initial;
};

void sums_portable(const uint8_t* source, const int64_t* pixels, int64_t count, const Taps& taps,
                   int64_t channels, int32_t* sums) {
    for (int64_t p = 0; p < count; p++, sums += kGroup) {
        for (int64_t c = 0; c < channels; c++) {
            int32_t sum = taps.initial[c];
            for (int64_t t = 0; t < 2 * taps.pairs; t++) {
                const int16_t weight = taps.weights[(t / 2 * kGroup + interleaved(c)) * 2 + t % 2];
                sum += source[pixels[p] + taps.offsets[t] + c] * weight;
            }
            sums[c] = sum;
        }
    }
}

#if LOWBIT_X86
LOWBIT_TARGET_AVX2 LOWBIT_INLINE __m256i widened(const uint8_t* from) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

LOWBIT_TARGET_AVX2 void sums_avx2(const uint8_t* source, const int64_t* pixels, int64_t count,
                                  const Taps& taps, int64_t, int32_t* sums) {
    for (int64_t p = 0; p < count; p += kPixels, sums += kPixels * kGroup) {
        const uint8_t* from[kPixels];
        __m256i low[kPixels], high[kPixels];
        for (int i = 0; i < kPixels; i++) {
            from[i] = source + pixels[p + i];
            low[i] = high[i] = _mm256_setzero_si256();
        }
        const __m256i* weights = reinterpret_cast<const __m256i*>(taps.weights);
        for (int64_t t = 0; t < taps.pairs; t++, weights += 2) {
            const int64_t first = taps.offsets[2 * t], second = taps.offsets[2 * t + 1];
            const __m256i w_low = _mm256_loadu_si256(weights), w_high = _mm256_loadu_si256(weights + 1);
            for (int i = 0; i < kPixels; i++) {
                const __m256i a = widened(from[i] + first), b = widened(from[i] + second);
                low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), w_low));
                high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), w_high));
            }
        }
        const __m256i* initial = reinterpret_cast<const __m256i*>(taps.initial);
        const __m256i start[2] = {_mm256_loadu_si256(initial), _mm256_loadu_si256(initial + 1)};
        for (int i = 0; i < kPixels; i++) {
            __m256i* to = reinterpret_cast<__m256i*>(sums + i * kGroup);
            _mm256_storeu_si256(to,
                                _mm256_add_epi32(start[0], _mm256_permute2x128_si256(low[i], high[i], 0x20)));
            _mm256_storeu_si256(to + 1,
                                _mm256_add_epi32(start[1], _mm256_permute2x128_si256(low[i], high[i], 0x31)));
        }
    }
}
#endif

class DepthwiseStep : public Step {
  public:
    explicit DepthwiseStep(ConvPlan plan) : plan_(std::move(plan)) {
        const Layout& layout = plan_.from.layout;
        const ConvShape& shape = plan_.weights->shape;
        const Window& win = plan_.window;
        for (int64_t t = 0; t < shape.taps(); t++) {
            offsets_.push_back(t / shape.kernel[1] * win.dilation[0] * layout.row_bytes() +
                               t % shape.kernel[1] * win.dilation[1] * layout.stride);
        }
        if (offsets_.size() % 2) offsets_.push_back(offsets_.back());
        reads = {plan_.from.slot};
        if (plan_.epilogue.has_residual) reads.push_back(plan_.target.residual.slot);
        writes = {plan_.target.to_float ? plan_.target.slot : plan_.target.bytes.slot};
    }

    int64_t weight_bytes() const override { return static_cast<int64_t>(plan_.weights->bytes.size()); }

    void run(const Memory& memory, ThreadPool& pool) const override {
        if (!plan_.target.to_float) {
            const Bytes& to = plan_.target.bytes;
            fill_halo(to.layout, to.grid.zero, memory.at(to.slot));
        }
        const int64_t pixels = plan_.out_pixels(), strip = std::min(pixels, kStripPixels);
        pool.parallel_for(ceil_div(pixels, strip), [&](int64_t item) {
            compute(memory, item * strip, std::min(strip, pixels - item * strip));
        });
    }

  private:
    static constexpr int64_t kStripPixels = gemm::kStrip;

    void compute(const Memory& memory, int64_t first, int64_t count) const {
        const PackedWeights& weights = *plan_.weights;
        StripOffsets offsets;
        plan_.find_offsets(first, count, &offsets);
        int64_t* pixels = offsets.source;
        std::fill(pixels + count, pixels + count + kPixels, pixels[count - 1]);
        alignas(64) int32_t sums[(kStripPixels + kPixels) * kGroup];
        for (int64_t c = 0; c < weights.shape.groups; c += kGroup) {
            const int64_t pairs = static_cast<int64_t>(offsets_.size()) / 2;
            const Taps taps{offsets_.data(), pairs,
                            reinterpret_cast<const int16_t*>(weights.bytes.data()) + c * 2 * pairs,
                            weights.initial.data() + c};
            const int64_t channels = std::min(kGroup, weights.shape.groups - c);
            const uint8_t* source = memory.at(plan_.from.slot) + c;
            bool fast = false;
#if LOWBIT_X86
            // Pixels of a few channels lie closer than a vector is wide.
            fast = instruction_set() != InstructionSet::baseline && plan_.from.layout.stride % kGroup == 0;
            if (fast) sums_avx2(source, pixels, count, taps, channels, sums);
#endif
            if (!fast) sums_portable(source, pixels, count, taps, channels, sums);
            plan_.finish(memory, sums, offsets, count, c, c, channels);
        }
    }

    ConvPlan plan_;
    std::vector<int64_t> offsets_;
};

}  // namespace

void pack_depthwise(const int16_t* integers, const Grid& source, PackedWeights* packed) {
    const ConvShape& shape = packed->shape;
    packed->depthwise = true;
    const int64_t blocks = ceil_div(shape.groups, kGroup), taps = shape.taps(), pairs = ceil_div(taps, 2);
    packed->bytes.resize(static_cast<size_t>(blocks * pairs * kGroup * 2) * sizeof(int16_t));
    packed->initial.resize(static_cast<size_t>(blocks * kGroup));
    int16_t* to = reinterpret_cast<int16_t*>(packed->bytes.data());
    for (int64_t c = 0; c < shape.groups; c++) {
        int64_t sum = 0;
        for (int64_t t = 0; t < taps; t++) {
            const int16_t value = integers[c * taps + t];
            to[((c / kGroup * pairs + t / 2) * kGroup + interleaved(c % kGroup)) * 2 + t % 2] = value;
            sum += value;
        }
        packed->initial[c] = static_cast<int32_t>(-source.zero * sum);
    }
}

StepPointer depthwise_step(ConvPlan plan) {
    const int64_t padded = round_up(plan.weights->shape.groups, kGroup);
    plan.epilogue.scale.resize(static_cast<size_t>(padded));
    plan.epilogue.bias.resize(static_cast<size_t>(padded));
    return std::make_unique<DepthwiseStep>(std::move(plan));
}

}  // namespace lowbit::runtime
