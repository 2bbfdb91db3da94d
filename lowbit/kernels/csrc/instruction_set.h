// Which instruction set the kernels are to use: the one that lowbit_select_variant chose, or the best.
#pragma once

#if defined(__x86_64__)
#define LOWBIT_X86 1
// Compilers older than these do not know AVX-VNNI.
#if (defined(__clang_major__) && __clang_major__ >= 12) || (!defined(__clang_major__) && __GNUC__ >= 11)
#define LOWBIT_AVXVNNI 1
// Nor AMX, for which the system must be asked, too.
#if defined(__linux__)
#define LOWBIT_AMX 1
#endif
#endif
#endif

namespace lowbit {

// `avxvnni` is avx2 and `avx512vnni` is avx512 with one more instruction, which multiplies small integers;
// `amx` is avx512vnni with one for whole tiles of them. Every set but the baseline holds avx2, and avx512 holds no
// avxvnni.
enum class InstructionSet { baseline, avx2, avxvnni, avx512, avx512vnni, amx };

InstructionSet instruction_set();

}  // namespace lowbit
