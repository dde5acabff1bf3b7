/* Preloaded: lets a process see a processor without AVX-512, AVX-VNNI and AMX.
 *
 * Linux lets `cpuid` fault on processors that can (the flag cpuid_fault). The handler answers in its place. Libraries
 * that decide by /proc/cpuinfo are not changed. Handlers that a process installs for SIGSEGV are called for its other
 * faults: compilers and Python's faulthandler have some. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define SET_CPUID 0x1012 /* of arch_prctl */
#define BIT(n) (1u << (n))

typedef int (*SigAction)(int, const struct sigaction*, struct sigaction*);

/* What the process wants done about SIGSEGV. */
static struct sigaction before;

static SigAction System(void) { return (SigAction)dlsym(RTLD_NEXT, "sigaction"); }

int sigaction(int number, const struct sigaction* given, struct sigaction* old) {
  if (number != SIGSEGV) return System()(number, given, old);
  const struct sigaction was = before;
  if (given != NULL) before = *given;
  if (old != NULL) *old = was;
  return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction given, old;
  memset(&given, 0, sizeof given);
  given.sa_handler = handler;
  given.sa_flags = SA_RESTART;
  return sigaction(number, &given, &old) == 0 ? old.sa_handler : SIG_ERR;
}

static void Ask(uint32_t leaf, uint32_t part, uint32_t* words) {
  syscall(SYS_arch_prctl, SET_CPUID, 1);
  __asm__ volatile("cpuid" : "=a"(words[0]), "=b"(words[1]), "=c"(words[2]), "=d"(words[3]) : "a"(leaf), "c"(part));
  syscall(SYS_arch_prctl, SET_CPUID, 0);
}

static void Hide(uint32_t leaf, uint32_t part, uint32_t* words) {
  if (leaf != 7) return;
  if (part == 0) {
    /* F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16,
     * FP16, AMX-TILE, AMX-INT8 */
    words[1] &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
    words[2] &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
    words[3] &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
  }
  if (part == 1) {
    /* AVX-VNNI, AVX512-BF16, AMX-FP16; AVX-VNNI-INT8, AMX-COMPLEX */
    words[0] &= ~(BIT(4) | BIT(5) | BIT(21));
    words[3] &= ~(BIT(4) | BIT(8));
  }
}

static void OnFault(int number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* code = (const uint8_t*)registers[REG_RIP];
  if (info->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0xa2) {
    uint32_t words[4];
    const uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX];
    Ask(leaf, part, words);
    Hide(leaf, part, words);
    registers[REG_RAX] = words[0];
    registers[REG_RBX] = words[1];
    registers[REG_RCX] = words[2];
    registers[REG_RDX] = words[3];
    registers[REG_RIP] += 2;
    return;
  }
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
    return;
  }
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
    return;
  }
  struct sigaction action;
  memset(&action, 0, sizeof action);
  System()(number, &action, NULL);
  raise(number);
}

__attribute__((constructor)) static void Begin(void) {
  static const char kCannot[] = "hide_avx512: this processor or system does not let cpuid fault\n";
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  System()(SIGSEGV, &action, &before);
  if (syscall(SYS_arch_prctl, SET_CPUID, 0) != 0) {
    if (write(2, kCannot, sizeof kCannot - 1) < 0) _exit(3);
    _exit(3);
  }
}
