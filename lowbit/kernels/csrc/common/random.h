// The counter-based random numbers of stochastic rounding. lowbit/numerics defines them; its implementation
// is the slow reference that tests compare with.
#pragma once
#include "common/cpu.h"

#include <initializer_list>

// The fields of a Python Draw: random numbers depend on nothing but these and the element's index.
struct lowbit_draw {
    uint64_t seed, step, layer;
};

namespace lowbit {

// The key for the elements of one block of 2^32.
struct RandomKey {
    uint32_t a = 0, b = 0;

    RandomKey() = default;
    RandomKey(const lowbit_draw& draw, uint64_t block) {
        uint64_t z = 0;
        for (uint64_t word : {draw.seed, draw.step, draw.layer, block}) {
            z = (z ^ word) + 0x9E3779B97F4A7C15u;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
            z ^= z >> 31;
        }
        a = uint32_t(z);
        b = uint32_t(z >> 32);
    }

    // 24 random bits for element `index` of the block.
    LOWBIT_INLINE uint32_t operator()(uint32_t index) const {
        uint32_t h = index + a;
        h = (h ^ (h >> 16)) * 0x7FEB352Du;
        h ^= h >> 15;
        h = (h + b) * 0x846CA68Bu;
        h = (h ^ (h >> 16)) * 0x9E3779B1u;
        return (h ^ (h >> 15)) >> 8;
    }
};

}  // namespace lowbit
