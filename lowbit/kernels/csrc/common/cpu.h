// Instruction sets: which one the kernels use, and how code for several of them lives in one library.
//
// The library is compiled for the oldest processor of the family. A loop that profits from newer instructions
// is written once as a LOWBIT_INLINE function in a header, and inlined into one function per instruction set
// with a LOWBIT_TARGET_... attribute; a table of function pointers is chosen at run time by
// `instruction_set()`. Compiling whole files with -mavx2 instead would be unsafe: the linker could keep the
// AVX2 copy of an inline function for everybody. Micro-kernels written with intrinsics carry the same
// attributes.
#pragma once
#include "common/common.h"

#if defined(__x86_64__)
#define LOWBIT_X86 1
// AVX-VNNI and AMX need clang 12 or GCC 11; AMX also needs Linux, which grants it to a process on request.
#if (defined(__clang_major__) && __clang_major__ >= 12) || (!defined(__clang_major__) && __GNUC__ >= 11)
#define LOWBIT_AVXVNNI 1
#if defined(__linux__)
#define LOWBIT_AMX 1
#endif
#endif
#endif

#define LOWBIT_TARGET_AVX2 __attribute__((target("avx2")))
#define LOWBIT_TARGET_AVX2_FMA __attribute__((target("avx2,fma")))
#define LOWBIT_TARGET_AVXVNNI __attribute__((target("avx2,avxvnni")))
#define LOWBIT_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define LOWBIT_TARGET_AVX512VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define LOWBIT_TARGET_AMX \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")))

// always_inline is what gives an inlined function the caller's instruction set.
#define LOWBIT_INLINE inline __attribute__((always_inline))
#define LOWBIT_INLINE_LAMBDA __attribute__((always_inline))
// Before a loop whose iterations may run in any order though pointers overlap, such as one in place.
#if defined(__clang__)
#define LOWBIT_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOWBIT_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

// In front of a loop over an array that must live in registers: only an early unroll turns its elements into
// them.
#if defined(__clang__)
#define LOWBIT_UNROLLED _Pragma("unroll")
#define LOWBIT_NOT_UNROLLED _Pragma("nounroll")
#else
#define LOWBIT_UNROLLED _Pragma("GCC unroll 16")
#define LOWBIT_NOT_UNROLLED _Pragma("GCC unroll 1")
#endif

// The instruction sets that this processor can run, best first, separated by spaces; the one in use; and a
// switch to another one, for tests and benchmarks: 0, or -1 when the processor lacks it.
LOWBIT_PUBLIC const char* lowbit_variants(void);
LOWBIT_PUBLIC const char* lowbit_variant(void);
LOWBIT_PUBLIC int lowbit_select_variant(const char* name);

namespace lowbit {

// Ordered: every set but the baseline includes avx2, and every set from avx512 on includes avx512. `avxvnni`
// is avx2, and `avx512vnni` is avx512, with one more instruction, which multiplies and adds bytes; `amx` is
// avx512vnni with one that does so for whole tiles. avx512 does not include avxvnni.
enum class InstructionSet { baseline, avx2, avxvnni, avx512, avx512vnni, amx };

// The one that lowbit_select_variant chose, or else the best that the processor has.
InstructionSet instruction_set();

// Of a table of kernels that was made for three targets, the one for the instruction set in use: a file makes
// its tables in namespaces avx512, avx2 and baseline, and chooses with LOWBIT_CHOOSE(name of the table).
#if LOWBIT_X86
template <class Table>
const Table& choose_table(const Table& avx512, const Table& avx2, const Table& baseline) {
    const InstructionSet set = instruction_set();
    return set >= InstructionSet::avx512 ? avx512 : set >= InstructionSet::avx2 ? avx2 : baseline;
}
#define LOWBIT_CHOOSE(TABLE) lowbit::choose_table(avx512::TABLE, avx2::TABLE, baseline::TABLE)
#else
#define LOWBIT_CHOOSE(TABLE) baseline::TABLE
#endif

}  // namespace lowbit
