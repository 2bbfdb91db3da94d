// Depthwise convolutions over bytes. See conv_step.h.
//
// Taps in fours: 32 channels of a pixel at a time. The bytes of four taps are interleaved, so that an
// instruction multiplies four taps of a channel and adds them up. Weights are bytes, [32 channels][four
// taps][0-3 and 16-19, 4-7 and 20-23, 8-11 and 24-27, 12-15 and 28-31][4], which is the order in which two
// rounds of vpunpck leave 32 channels. If 16 or fewer channels are left, they take both halves, for two
// pixels. VNNI does it for any weights; AVX2 where no two products can exceed 16 bits, which holds for
// weights of 7 bits.
//
// Taps in pairs: 16 channels at a time, for other weights and without AVX2. Weights are int16, [16
// channels][pair of taps][16][2], in the order in which AVX2 interleaves two taps of 16 channels: 0-3 and
// 8-11, then 4-7 and 12-15.
//
// Taps that are missing at the end have the weight 0.
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
constexpr int kPixels = 4;  // of pairs of taps, computed together
constexpr int64_t kStripPixels = gemm::kStrip;
constexpr int64_t kStripSums = (kStripPixels + kPixels) * kGroup;

// The place of channel c of 16 among the interleaved ones.
int64_t interleaved(int64_t c) { return (c & 3) | (c >> 1 & 4) | (c << 1 & 8); }

struct Taps {
    const int64_t* offsets;
    int64_t count;  // pairs, or fours
    const uint8_t* weights;
    const int32_t* initial;
};

void sum_pairs_portable(const uint8_t* source, const int64_t* pixels, int64_t count, const Taps& taps,
                        int64_t channels, int32_t* sums) {
    const int16_t* weights = reinterpret_cast<const int16_t*>(taps.weights);
    for (int64_t p = 0; p < count; p++, sums += kGroup) {
        for (int64_t c = 0; c < channels; c++) {
            int32_t sum = taps.initial[c];
            for (int64_t t = 0; t < 2 * taps.count; t++) {
                const int16_t weight = weights[(t / 2 * kGroup + interleaved(c)) * 2 + t % 2];
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

LOWBIT_TARGET_AVX2 void sum_pairs_avx2(const uint8_t* source, const int64_t* pixels, int64_t count,
                                       const Taps& taps, int32_t* sums) {
    for (int64_t p = 0; p < count; p += kPixels, sums += kPixels * kGroup) {
        const uint8_t* from[kPixels];
        __m256i low[kPixels], high[kPixels];
        for (int i = 0; i < kPixels; i++) {
            from[i] = source + pixels[p + i];
            low[i] = high[i] = _mm256_setzero_si256();
        }
        const __m256i* weights = reinterpret_cast<const __m256i*>(taps.weights);
        for (int64_t t = 0; t < taps.count; t++, weights += 2) {
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

// Four taps, those of a channel together: of 32 channels, or of 16 channels of two pixels.
template <bool kTwo>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void interleave(const uint8_t* source, const int64_t* pixels,
                                                 const int64_t* offsets, __m256i (&four)[4]) {
    __m256i tap[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t* from = source + pixels[0] + offsets[i];
        if (kTwo) {
            const __m128i* other = reinterpret_cast<const __m128i*>(source + pixels[1] + offsets[i]);
            tap[i] = _mm256_inserti128_si256(
                _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
                _mm_loadu_si128(other), 1);
        } else {
            tap[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        }
    }
    const __m256i ab[2] = {_mm256_unpacklo_epi8(tap[0], tap[1]), _mm256_unpackhi_epi8(tap[0], tap[1])};
    const __m256i cd[2] = {_mm256_unpacklo_epi8(tap[2], tap[3]), _mm256_unpackhi_epi8(tap[2], tap[3])};
    for (int i = 0; i < 2; i++) {
        four[2 * i] = _mm256_unpacklo_epi16(ab[i], cd[i]);
        four[2 * i + 1] = _mm256_unpackhi_epi16(ab[i], cd[i]);
    }
}

// Sums in the same order. The second 16 are those of the next pixel, or of channels that lie kStripSums
// further on.
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void load_initial(const int32_t* from, __m256i (&sums)[4]) {
    for (int i = 0; i < 4; i++) {
        const __m128i* at = reinterpret_cast<const __m128i*>(from + 4 * i);
        sums[i] =
            _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(at)), _mm_loadu_si128(at + 4), 1);
    }
}
template <bool kTwo>
LOWBIT_TARGET_AVX2 LOWBIT_INLINE void store_sums(const __m256i (&sums)[4], int32_t* to) {
    for (int i = 0; i < 4; i++) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 4 * i), _mm256_castsi256_si128(sums[i]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (kTwo ? kGroup : kStripSums) + 4 * i),
                         _mm256_extracti128_si256(sums[i], 1));
    }
}

template <bool kTwo>
LOWBIT_TARGET_AVX2 void sum_fours_avx2(const uint8_t* source, const int64_t* pixels, int64_t count,
                                       const Taps& taps, int32_t* to) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t p = 0; p < count; p += kTwo ? 2 : 1) {
        __m256i sums[4], bytes[4];
        load_initial(taps.initial, sums);
        const __m256i* weights = reinterpret_cast<const __m256i*>(taps.weights);
        for (int64_t t = 0; t < taps.count; t++, weights += 4) {
            interleave<kTwo>(source, pixels + p, taps.offsets + 4 * t, bytes);
            for (int i = 0; i < 4; i++) {
                const __m256i pairs = _mm256_maddubs_epi16(bytes[i], _mm256_loadu_si256(weights + i));
                sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
            }
        }
        store_sums<kTwo>(sums, to + p * kGroup);
    }
}

template <bool kTwo>
LOWBIT_TARGET_AVX512VNNI void sum_fours_vnni(const uint8_t* source, const int64_t* pixels, int64_t count,
                                             const Taps& taps, int32_t* to) {
    for (int64_t p = 0; p < count; p += kTwo ? 2 : 1) {
        __m256i sums[4], bytes[4];
        load_initial(taps.initial, sums);
        const __m256i* weights = reinterpret_cast<const __m256i*>(taps.weights);
        for (int64_t t = 0; t < taps.count; t++, weights += 4) {
            interleave<kTwo>(source, pixels + p, taps.offsets + 4 * t, bytes);
            for (int i = 0; i < 4; i++) {
                sums[i] = _mm256_dpbusd_epi32(sums[i], bytes[i], _mm256_loadu_si256(weights + i));
            }
        }
        store_sums<kTwo>(sums, to + p * kGroup);
    }
}
#endif

// Whether the products of the taps can be added up in fours.
bool can_sum_fours(const int16_t* integers, const ConvShape& shape, const Grid& source) {
#if LOWBIT_X86
    const InstructionSet isa = instruction_set();
    if (isa == InstructionSet::baseline || Layout::stride_of(shape.groups) % kGroup) return false;
    if (isa >= InstructionSet::avx512vnni) return true;
    const int64_t taps = shape.taps(), limit = INT16_MAX / std::max(source.highest, 1);
    for (int64_t c = 0; c < shape.groups; c++) {
        for (int64_t t = 0; t < taps; t += 2) {
            const int64_t a = integers[c * taps + t], b = t + 1 < taps ? integers[c * taps + t + 1] : 0;
            const int64_t above = std::max<int64_t>(a, 0) + std::max<int64_t>(b, 0);
            if (above > limit || above - a - b > limit) return false;
        }
    }
    return true;
#else
    (void)integers, (void)shape, (void)source;
    return false;
#endif
}

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
        while (offsets_.size() % taps_together()) offsets_.push_back(offsets_.back());
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
    size_t taps_together() const { return plan_.weights->depthwise_fours ? 4 : 2; }

    void compute(const Memory& memory, int64_t first, int64_t count) const {
        StripOffsets offsets;
        plan_.find_offsets(first, count, &offsets);
        std::fill(offsets.source + count, offsets.source + count + kPixels, offsets.source[count - 1]);
        const PackedWeights& weights = *plan_.weights;
        const int64_t groups = static_cast<int64_t>(offsets_.size() / taps_together());
        const int64_t block = weights.depthwise_fours ? 2 * kGroup : kGroup;
        const int64_t block_bytes = weights.depthwise_fours ? groups * 128 : groups * 64;
        alignas(64) int32_t sums[2 * kStripSums];
        for (int64_t c = 0; c < weights.shape.groups; c += block) {
            const Taps taps{offsets_.data(), groups, weights.bytes.data() + c / block * block_bytes,
                            weights.initial.data() + c};
            const int64_t left = weights.shape.groups - c;
            add_up(memory.at(plan_.from.slot) + c, offsets.source, count, taps, left, sums);
            for (int64_t i = 0; i < block && i < left; i += kGroup) {
                plan_.finish(memory, sums + i / kGroup * kStripSums, offsets, count, c + i, c + i,
                             std::min(kGroup, left - i));
            }
        }
    }

    // Of a block of channels; so many are `left`.
    void add_up(const uint8_t* source, const int64_t* pixels, int64_t count, const Taps& taps, int64_t left,
                int32_t* sums) const {
#if LOWBIT_X86
        if (plan_.weights->depthwise_fours) {
            auto run = left > kGroup ? sum_fours_avx2<false> : sum_fours_avx2<true>;
            if (isa_ >= InstructionSet::avx512vnni)
                run = left > kGroup ? sum_fours_vnni<false> : sum_fours_vnni<true>;
            return run(source, pixels, count, taps, sums);
        }
        // Pixels of a few channels lie closer than a vector is wide.
        if (isa_ != InstructionSet::baseline && plan_.from.layout.stride % kGroup == 0)
            return sum_pairs_avx2(source, pixels, count, taps, sums);
#endif
        sum_pairs_portable(source, pixels, count, taps, std::min(kGroup, left), sums);
    }

    ConvPlan plan_;
    const InstructionSet isa_ = instruction_set();  // that the weights were packed for
    std::vector<int64_t> offsets_;
};

}  // namespace

void pack_depthwise(const int16_t* integers, const Grid& source, PackedWeights* packed) {
    const ConvShape& shape = packed->shape;
    const int64_t taps = shape.taps();
    packed->depthwise = true;
    packed->depthwise_fours = can_sum_fours(integers, shape, source);
    const int64_t together = packed->depthwise_fours ? 4 : 2, block = together * 8;
    const int64_t groups = ceil_div(taps, together), blocks = ceil_div(shape.groups, block);
    packed->bytes.resize(static_cast<size_t>(blocks * groups * block * 4));
    packed->initial.resize(static_cast<size_t>(blocks * block));
    const auto pack = [&](int64_t c, int64_t place) {  // `place` is where the channel is stored
        int64_t sum = 0;
        for (int64_t t = 0; t < taps; t++) {
            const int16_t value = integers[c * taps + t];
            uint8_t* to = packed->bytes.data() + (place / block * groups + t / together) * block * 4;
            if (packed->depthwise_fours) {
                to[place % 16 / 4 * 32 + place / 16 % 2 * 16 + place % 4 * 4 + t % 4] =
                    static_cast<uint8_t>(value);
            } else {
                memcpy(to + (interleaved(place % kGroup) * 2 + t % 2) * 2, &value, 2);
            }
            sum += value;
        }
        packed->initial[place] = static_cast<int32_t>(-source.zero * sum);
    };
    const int64_t last = shape.groups / block * block;  // the first channel of an incomplete block
    for (int64_t c = 0; c < shape.groups; c++) {
        pack(c, c);
        if (packed->depthwise_fours && c >= last && shape.groups - last <= kGroup) pack(c, c + kGroup);
    }
}

StepPointer depthwise_step(ConvPlan plan) {
    const int64_t padded = round_up(plan.weights->shape.groups, kGroup);
    plan.epilogue.scale.resize(static_cast<size_t>(padded));
    plan.epilogue.bias.resize(static_cast<size_t>(padded));
    return std::make_unique<DepthwiseStep>(std::move(plan));
}

}  // namespace lowbit::runtime
