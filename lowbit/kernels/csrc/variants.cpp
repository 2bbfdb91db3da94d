// Every kernel compiled for each instruction set, and the choice between them at run time.
//
// The bodies are inlined into functions with a target attribute, so that one build for any processor of the
// family holds all of them, and nothing compiled for a newer one can be linked into the rest.
#include "amx.h"
#include "bodies.h"
#include "instruction_set.h"
#include "layout_parts.h"

#include <atomic>
#include <cstring>
#if LOWBIT_X86
#include <cpuid.h>
#endif

#ifndef LOWBIT_FINGERPRINT
#define LOWBIT_FINGERPRINT "unknown"
#endif

namespace {

using lowbit::Block;
using lowbit::InstructionSet;

struct Variant {
    const char* name;
    InstructionSet set;
    bool (*runs_here)();
    // Of a block, as it is cut out for a thread.
    void (*quantize)(const float* x, float* y, const float* scale, const float* bound, Block block, lowbit_grid grid,
                     int32_t integers);
    void (*quantize_grad)(const float* x, const float* dy, float* dx, const float* scale, const float* bound,
                          double* dbound, Block block, lowbit_grid grid);
    void (*lsq_grad)(const float* x, const float* dy, float* dx, const float* step, double* dstep, Block block,
                     lowbit_grid grid);
};

#define LOWBIT_VARIANT(NAME, TARGET)                                                                          \
    namespace NAME {                                                                                          \
    TARGET void quantize(const float* x, float* y, const float* scale, const float* bound, Block block,       \
                         lowbit_grid grid, int32_t integers) {                                                \
        lowbit::quantize(x, y, scale, bound, block, grid, integers);                                          \
    }                                                                                                         \
    TARGET void quantize_grad(const float* x, const float* dy, float* dx, const float* scale,                 \
                              const float* bound, double* dbound, Block block, lowbit_grid grid) {            \
        lowbit::quantize_grad(x, dy, dx, scale, bound, dbound, block, grid);                                  \
    }                                                                                                         \
    TARGET void lsq_grad(const float* x, const float* dy, float* dx, const float* step, double* dstep,        \
                         Block block, lowbit_grid grid) {                                                     \
        lowbit::lsq_grad(x, dy, dx, step, dstep, block, grid);                                                \
    }                                                                                                         \
    const Variant variant = {#NAME, InstructionSet::NAME, runs_here, quantize, quantize_grad, lsq_grad};      \
    }

#if LOWBIT_X86
namespace avx512 {
bool runs_here() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
}  // namespace avx512
LOWBIT_VARIANT(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))

namespace avx2 {
bool runs_here() { return __builtin_cpu_supports("avx2"); }
}  // namespace avx2
LOWBIT_VARIANT(avx2, __attribute__((target("avx2"))))
#endif

namespace baseline {
bool runs_here() { return true; }
}  // namespace baseline
LOWBIT_VARIANT(baseline, )

#if LOWBIT_X86
// The same loops, where only the products of integers differ.
Variant with_products(Variant variant, const char* name, InstructionSet set, bool (*runs_here)()) {
    variant.name = name;
    variant.set = set;
    variant.runs_here = runs_here;
    return variant;
}

const Variant kAvx512Vnni = with_products(avx512::variant, "avx512vnni", InstructionSet::avx512vnni, [] {
    return avx512::runs_here() && __builtin_cpu_supports("avx512vnni");
});
#if LOWBIT_AMX
const Variant kAmx = with_products(avx512::variant, "amx", InstructionSet::amx,
                                   [] { return kAvx512Vnni.runs_here() && lowbit::amx::allowed(); });
#endif
#if LOWBIT_AVXVNNI
// Asked of the processor: clang's __builtin_cpu_supports does not know the word.
bool has_avxvnni() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}

const Variant kAvxVnni = with_products(avx2::variant, "avxvnni", InstructionSet::avxvnni,
                                       [] { return avx2::runs_here() && has_avxvnni(); });
#endif
#endif

const Variant* const kVariants[] = {
#if LOWBIT_X86
#if LOWBIT_AMX
    &kAmx,
#endif
    &kAvx512Vnni, &avx512::variant,
#if LOWBIT_AVXVNNI
    &kAvxVnni,
#endif
    &avx2::variant,
#endif
    &baseline::variant};

const Variant* best() {
    for (const Variant* variant : kVariants) {
        if (variant->runs_here()) return variant;
    }
    return &baseline::variant;
}

std::atomic<const Variant*> chosen{best()};

const Variant& current() { return *chosen.load(std::memory_order_relaxed); }

}  // namespace

lowbit::InstructionSet lowbit::instruction_set() { return current().set; }

const char* lowbit_fingerprint(void) { return LOWBIT_FINGERPRINT; }

const char* lowbit_variants(void) {
    static char names[64];
    names[0] = 0;
    for (const Variant* variant : kVariants) {
        if (!variant->runs_here()) continue;
        if (names[0]) strcat(names, " ");
        strcat(names, variant->name);
    }
    return names;
}

const char* lowbit_variant(void) { return current().name; }

int lowbit_select_variant(const char* name) {
    for (const Variant* variant : kVariants) {
        if (!strcmp(variant->name, name) && variant->runs_here()) {
            chosen.store(variant);
            return 0;
        }
    }
    return -1;
}

void lowbit_quantize(const float* x, float* y, const float* scale, const float* bound, lowbit_layout layout,
                     lowbit_grid grid, int32_t integers) {
    lowbit::each_block(layout, [&](Block block, int64_t at, int64_t c) {
        current().quantize(x + at, y + at, scale + c, bound ? bound + c : nullptr, block, grid, integers);
    });
}

void lowbit_quantize_grad(const float* x, const float* dy, float* dx, const float* scale, const float* bound,
                          float* dbound, lowbit_layout layout, lowbit_grid grid) {
    lowbit::each_block(layout, bound ? dbound : nullptr, [&](Block block, int64_t at, int64_t c, double* sums) {
        current().quantize_grad(x + at, dy + at, dx ? dx + at : nullptr, scale + c, bound ? bound + c : nullptr, sums,
                                block, grid);
    });
}

void lowbit_lsq_grad(const float* x, const float* dy, float* dx, const float* step, float* dstep,
                     lowbit_layout layout, lowbit_grid grid) {
    lowbit::each_block(layout, dstep, [&](Block block, int64_t at, int64_t c, double* sums) {
        current().lsq_grad(x + at, dy + at, dx ? dx + at : nullptr, step + c, sums, block, grid);
    });
}
