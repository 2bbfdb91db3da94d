// A preloaded library that answers CPUID as an AVX2 processor would. avx2_only.py replaces CPUID (0F A2) by the
// undefined instruction UD2 (0F 0B) in copies of the engines' libraries; the signal handler here executes the
// real CPUID and clears the bits of AVX-512, VNNI, BF16, AMX and AVX10.
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

typedef int (*sigaction_function)(int, const struct sigaction*, struct sigaction*);

static uint32_t without(uint32_t word, const int* bits, int count) {
  for (int i = 0; i < count; ++i) word &= ~(UINT32_C(1) << bits[i]);
  return word;
}

#define CLEAR(word, ...)                                                                       \
  do {                                                                                         \
    static const int bits[] = {__VA_ARGS__};                                                   \
    (word) = without((uint32_t)(word), bits, (int)(sizeof(bits) / sizeof(bits[0])));           \
  } while (0)

static void answer_cpuid(int number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* at = (const uint8_t*)registers[REG_RIP];
  if (at[0] != 0x0f || at[1] != 0x0b) {  // another illegal instruction: let it end the process
    signal(SIGILL, SIG_DFL);
    return;
  }
  const uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX];
  uint32_t a, b, c, d;
  __cpuid_count(leaf, part, a, b, c, d);
  if (leaf == 7 && part == 0) {
    CLEAR(b, 16, 17, 21, 26, 27, 28, 30, 31);  // AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL
    CLEAR(c, 1, 6, 11, 12, 14);                // AVX-512 VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ
    CLEAR(d, 2, 3, 8, 22, 23, 24, 25);         // 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8
  } else if (leaf == 7 && part == 1) {
    CLEAR(a, 4, 5, 21, 23);      // AVX-VNNI, AVX-512 BF16, AMX-FP16, AVX-IFMA
    CLEAR(d, 4, 5, 8, 10, 19);   // AVX-VNNI-INT8, AVX-NE-CONVERT, AMX-COMPLEX, AVX-VNNI-INT16, AVX10
  }
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

static sigaction_function real_sigaction(void) { return (sigaction_function)dlsym(RTLD_NEXT, "sigaction"); }

// Nobody else handles SIGILL, such as Python's faulthandler: it would end the process at the first CPUID.
int sigaction(int number, const struct sigaction* action, struct sigaction* old) {
  return real_sigaction()(number, number == SIGILL ? NULL : action, old);
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_sigaction = answer_cpuid;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  real_sigaction()(SIGILL, &action, NULL);
}
