// Detection of the processor's instruction sets, and the choice among them; see cpu.h.
#include "common/cpu.h"

#include <atomic>
#include <cstring>
#if LOWBIT_X86
#include <cpuid.h>
#endif
#if LOWBIT_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifndef LOWBIT_FINGERPRINT
#define LOWBIT_FINGERPRINT "unknown"
#endif

namespace {

using lowbit::InstructionSet;

struct Variant {
    const char* name;
    InstructionSet set;
    bool (*is_supported)();
};

#if LOWBIT_X86
bool has_avx2() { return __builtin_cpu_supports("avx2"); }

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

#if LOWBIT_AVXVNNI
// By CPUID, since clang's __builtin_cpu_supports does not know the name.
bool has_avxvnni() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
#endif

#if LOWBIT_AMX
// The processor has AMX, and Linux lets this process use its tile registers. The request is made once.
bool has_amx() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool is_allowed = [] {
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        const bool has_int8 =
            __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx >> 24 & 1) && (edx >> 25 & 1);
        return has_int8 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    }();
    return has_avx512vnni() && is_allowed;
}
#endif
#endif

const Variant kVariants[] = {// best first
#if LOWBIT_X86
#if LOWBIT_AMX
                             {"amx", InstructionSet::amx, has_amx},
#endif
                             {"avx512vnni", InstructionSet::avx512vnni, has_avx512vnni},
                             {"avx512", InstructionSet::avx512, has_avx512},
#if LOWBIT_AVXVNNI
                             {"avxvnni", InstructionSet::avxvnni, has_avxvnni},
#endif
                             {"avx2", InstructionSet::avx2, has_avx2},
#endif
                             {"baseline", InstructionSet::baseline, [] { return true; }}};

const Variant* best() {
    const Variant* found = kVariants;
    while (!found->is_supported()) ++found;
    return found;
}

std::atomic<const Variant*> chosen{best()};

const Variant& current() { return *chosen.load(std::memory_order_relaxed); }

}  // namespace

lowbit::InstructionSet lowbit::instruction_set() { return current().set; }

const char* lowbit_fingerprint(void) { return LOWBIT_FINGERPRINT; }

const char* lowbit_variants(void) {
    static char names[64];
    names[0] = 0;
    for (const Variant& variant : kVariants) {
        if (!variant.is_supported()) continue;
        if (names[0]) strcat(names, " ");
        strcat(names, variant.name);
    }
    return names;
}

const char* lowbit_variant(void) { return current().name; }

int lowbit_select_variant(const char* name) {
    for (const Variant& variant : kVariants) {
        if (!strcmp(variant.name, name) && variant.is_supported()) {
            chosen.store(&variant);
            return 0;
        }
    }
    return -1;
}
