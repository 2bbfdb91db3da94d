// Whether AMX can be used, and the shapes of its tiles; see amx.h.
#include "amx.h"

#if LOWBIT_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lowbit::amx {
namespace {

constexpr int kRequestPermission = 0x1023, kTileData = 18;  // Linux's ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA

bool ask() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    const bool there = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx >> 24 & 1) && (edx >> 25 & 1);
    return there && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool allowed() {
    static const bool is = ask();
    return is;
}

LOWBIT_AMX_TARGET Shapes::Shapes(int64_t rows, int64_t tail) {
    Configuration c;
    const auto set = [&c](int tile, int64_t rows_of, int64_t bytes) {
        c.rows[tile] = static_cast<uint8_t>(rows_of);
        c.row_bytes[tile] = static_cast<uint16_t>(bytes);
    };
    for (int sums = 0; sums < 4; sums++) set(sums, rows, kBytes);
    set(4, rows, kBytes);
    set(5, kWords, kBytes);
    if (tail) {
        set(6, rows, 4 * tail);
        set(7, tail, kBytes);
    }
    __asm__ volatile("sttilecfg %0" : "=m"(before_));
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

LOWBIT_AMX_TARGET Shapes::~Shapes() {
    if (before_.palette) {
        __asm__ volatile("ldtilecfg %0" : : "m"(before_));
    } else {
        __asm__ volatile("tilerelease");
    }
}

}  // namespace lowbit::amx
#endif
