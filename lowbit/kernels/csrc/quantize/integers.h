// fp32 values to small integers and back, and 4-bit integers packed two to a byte.
#pragma once
#include "common/grouped_axes.h"
#include "quantize/rounding.h"

namespace lowbit {

constexpr int kVector = 64;         // elements per iteration: their bytes fill the widest register
constexpr int kMaxChunk = 1 << 20;  // elements per loop, so that int32 counts them
constexpr float kUnit = 0x1p24f;    // random numbers are multiples of 1 / kUnit

// Whether fraction + k / kUnit >= 1, as 1 or 0. Decided in integers: the bits cut off from the fraction
// cannot change it.
LOWBIT_INLINE int32_t rounds_up(float fraction, uint32_t k) {
    return (int32_t(fraction * kUnit) + int32_t(k)) >> 24;
}

// Roundings of a magnitude, with 24 random bits; kDraws is the number of independent draws that are summed.
struct Nearest {
    static constexpr int kDraws = 0;
    static LOWBIT_INLINE int32_t round(float v, uint32_t) { return nearest_integer(v); }
};

template <int kTimes>
struct Stochastic {
    static constexpr int kDraws = kTimes;
    static LOWBIT_INLINE int32_t round(float v, uint32_t k) {
        const int32_t whole = int32_t(v);
        return whole + rounds_up(v - float(whole), k);
    }
};

// The same for magnitudes below 128: integer part and 24 bits of fraction fit into 31 bits.
template <int kTimes>
struct StochasticSmall {
    static constexpr int kDraws = kTimes;
    static LOWBIT_INLINE int32_t round(float v, uint32_t k) { return rounds_up(v, k); }
};

// The power of two of v >= 1: adds `noise`, in units of 2^-23 of the distance to the next power, and
// truncates to a power.
LOWBIT_INLINE int32_t power(float v, int32_t noise) {
    return int32_t(float_of((bits_of(v) + noise) & 0x7f800000));
}

struct LogNearest {
    static constexpr int kDraws = 0;
    static LOWBIT_INLINE int32_t round(float v, uint32_t) {
        const int32_t below_half = (1 << 22) - 1;  // halfway rounds down
        return v < 1.0f ? v > 0.5f : power(v, below_half);
    }
};

template <int kTimes>
struct LogStochastic {
    static constexpr int kDraws = kTimes;
    static LOWBIT_INLINE int32_t round(float v, uint32_t k) {
        const int32_t under = rounds_up(v < 1.0f ? v : 0.0f, k), over = power(v, int32_t(k >> 1));
        return v < 1.0f ? under : over;
    }
};

template <class Rounding, class Scales>
LOWBIT_INLINE int32_t convert_with(const float* x, uint8_t* q, Scales scales, int32_t count, float lowest,
                                   float highest, const RandomKey* keys, uint32_t index) {
    int32_t nan_count = 0;
    for (int32_t i = 0; i < (count & -kVector); ++i) {
        float v = x[i] / scales[i];
        nan_count += v != v;
        v = v > lowest ? v : lowest;  // NaN becomes `lowest` here and is set to 0 below
        v = v < highest ? v : highest;
        const float size = __builtin_fabsf(v);
        int32_t sum = 0;
        if (Rounding::kDraws == 0) sum = Rounding::round(size, 0);
        for (int draw = 0; draw < Rounding::kDraws; ++draw) {
            sum += Rounding::round(size, keys[draw](index + uint32_t(i)));
        }
        q[i] = uint8_t(v < 0 ? -sum : sum);
    }
    for (int32_t i = 0; nan_count && i < (count & -kVector); ++i) {
        const float v = x[i] / scales[i];
        if (v != v) q[i] = 0;
    }
    return nan_count;
}

// Integers of a multiple of kVector elements with one scale, or one each; the first element has number
// `index` of its random block. Returns how many were NaN.
template <class Rounding>
LOWBIT_INLINE int32_t convert(const float* x, uint8_t* q, const float* scales, bool each, int32_t count,
                              float lowest, float highest, const RandomKey* keys, uint32_t index) {
    if (each) return convert_with<Rounding>(x, q, ScaleEach{scales}, count, lowest, highest, keys, index);
    return convert_with<Rounding>(x, q, OneScale{scales[0]}, count, lowest, highest, keys, index);
}

struct Conversion {
    int32_t (*convert)(const float* x, uint8_t* q, const float* scales, bool each, int32_t count,
                       float lowest, float highest, const RandomKey* keys, uint32_t index);
    float lowest, highest;
    const lowbit_draw* draws;
    int32_t count_draws;

    // Any number of elements up to kMaxChunk within one random block.
    int32_t convert_some(const float* x, uint8_t* q, const float* scales, bool each, int32_t count,
                         const RandomKey* keys, uint32_t index) const {
        const int32_t whole = count & -kVector, rest = count - whole;
        int32_t nan_count = convert(x, q, scales, each, whole, lowest, highest, keys, index);
        if (rest) {  // as a padded vector: a scalar loop over the remainder takes as long as many vectors
            float values[kVector], own[kVector];
            uint8_t integers[kVector];
            for (int32_t i = 0; i < kVector; ++i) values[i] = 0.0f, own[i] = 1.0f;
            for (int32_t i = 0; i < rest; ++i) {
                values[i] = x[whole + i], own[i] = scales[each ? whole + i : 0];
            }
            nan_count +=
                convert(values, integers, own, true, kVector, lowest, highest, keys, index + uint32_t(whole));
            __builtin_memcpy(q + whole, integers, rest);
        }
        return nan_count;
    }

    int64_t convert_all(const float* x, uint8_t* q, const float* scales, const GroupedAxes& grouped,
                        uint64_t first) const {
        const Keys usual(*this, first >> 32);
        std::atomic<int64_t> nan_count{0};
        for_each_run(grouped, scales, [&](int64_t at, int64_t count, const float* own, bool each) {
            for (int64_t done = 0; done < count;) {
                const uint64_t number = first + uint64_t(at + done), block = number >> 32;
                const int64_t left = count - done, in_block = int64_t((uint64_t(1) << 32) - uint32_t(number));
                const int64_t most = in_block < kMaxChunk ? in_block : kMaxChunk,
                              now = left < most ? left : most;
                const Keys keys = block == usual.block ? usual : Keys(*this, block);
                const int32_t found = convert_some(x + at + done, q + at + done, each ? own + done : own,
                                                   each, int32_t(now), keys.of_draw, uint32_t(number));
                if (found) nan_count += found;
                done += now;
            }
        });
        return nan_count;
    }

  private:
    // The key of every draw for one random block.
    struct Keys {
        uint64_t block;
        RandomKey of_draw[2];

        Keys(const Conversion& of, uint64_t of_block) : block(of_block) {
            for (int32_t i = 0; i < of.count_draws; ++i) of_draw[i] = RandomKey(of.draws[i], block);
        }
    };
};

template <class Scales>
LOWBIT_INLINE void from_integers_with(const uint8_t* q, float* y, Scales scales, int64_t count,
                                      int32_t flip) {
    for (int64_t i = 0; i < count; ++i) y[i] = float((int32_t(q[i]) ^ flip) - flip) * scales[i];
}

// Contiguous integers with one scale, or one each.
LOWBIT_INLINE void from_integers(const uint8_t* q, float* y, const float* scales, bool each, int64_t count,
                                 int32_t is_signed) {
    const int32_t flip = is_signed ? 128 : 0;  // (byte ^ 128) - 128 extends the sign of a byte
    if (each) {
        from_integers_with(q, y, ScaleEach{scales}, count, flip);
    } else {
        from_integers_with(q, y, OneScale{*scales}, count, flip);
    }
}

typedef uint16_t __attribute__((may_alias, aligned(1))) Pair;

LOWBIT_INLINE void pack_nibbles(const uint8_t* q, uint8_t* packed, int64_t count) {
    const Pair* pairs = reinterpret_cast<const Pair*>(q);
    const int64_t whole = count / 2;
    for (int64_t i = 0; i < whole; ++i) packed[i] = uint8_t((pairs[i] & 0x0f) | (pairs[i] >> 4 & 0xf0));
    if (count % 2) packed[whole] = q[count - 1] & 0x0f;
}

// The two nibbles of a byte as bytes; with `sign`, bit 3 of each is extended into its upper bits.
LOWBIT_INLINE uint16_t unpacked(uint8_t byte, uint16_t sign) {
    const uint16_t pair = uint16_t((byte & 0x0f) | (byte & 0xf0) << 4);
    return uint16_t(pair | uint16_t((pair & sign) * 0x1e));
}

LOWBIT_INLINE void unpack_nibbles(const uint8_t* packed, uint8_t* q, int64_t count, int32_t is_signed) {
    Pair* pairs = reinterpret_cast<Pair*>(q);
    const uint16_t sign = is_signed ? 0x0808 : 0;
    const int64_t whole = count / 2;
    for (int64_t i = 0; i < whole; ++i) pairs[i] = unpacked(packed[i], sign);
    if (count % 2) q[count - 1] = uint8_t(unpacked(packed[whole], sign));
}

}  // namespace lowbit
