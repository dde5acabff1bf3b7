// What this machine's processor can run: the levels of the x86-64 psABI and three above them.
#include "shim.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ortkit {

const char* CpuName(OrtkitCpu cpu) {
  switch (cpu) {
    case ORTKIT_CPU_X86_64: return "x86-64";
    case ORTKIT_CPU_X86_64_V2: return "x86-64-v2";
    case ORTKIT_CPU_X86_64_V3: return "x86-64-v3";
    case ORTKIT_CPU_X86_64_V4: return "x86-64-v4";
    case ORTKIT_CPU_X86_64_V4_VNNI: return "x86-64-v4-vnni";
    case ORTKIT_CPU_X86_64_V4_BF16: return "x86-64-v4-bf16";
    case ORTKIT_CPU_X86_64_V4_AMX: return "x86-64-v4-amx";
    case ORTKIT_CPU_AARCH64: return "aarch64";
  }
  return "unknown";
}

namespace {

constexpr uint32_t Bits() { return 0; }
template <class... More>
constexpr uint32_t Bits(int first, More... more) {
  return (1u << first) | Bits(more...);
}
bool Has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// Bit numbers: Intel SDM, CPUID; levels: x86-64 psABI, "Micro-Architecture Levels".
constexpr uint32_t kLeaf1EcxV2 = Bits(0, 9, 13, 19, 20, 23);  // SSE3 SSSE3 CX16 SSE4.1 SSE4.2 POPCNT
constexpr uint32_t kLeaf1EcxV3 = Bits(12, 22, 27, 28, 29);    // FMA MOVBE OSXSAVE AVX F16C
constexpr uint32_t kLeaf7EbxV3 = Bits(3, 5, 8);               // BMI1 AVX2 BMI2
constexpr uint32_t kLeaf7EbxV4 = Bits(16, 17, 28, 30, 31);    // AVX512 F DQ CD BW VL
constexpr uint32_t kExtendedEcxV2 = Bits(0);                  // LAHF
constexpr uint32_t kExtendedEcxV3 = Bits(5);                  // LZCNT
constexpr uint32_t kSavesYmm = Bits(1, 2);                    // XCR0: SSE, AVX state
constexpr uint32_t kSavesZmm = Bits(1, 2, 5, 6, 7);           // and the AVX-512 state
constexpr uint32_t kLeaf7EcxVnni = Bits(11);                  // AVX512-VNNI
constexpr uint32_t kLeaf7Part1EaxBf16 = Bits(5);              // AVX512-BF16
constexpr uint32_t kLeaf7EdxAmx = Bits(22, 24, 25);           // AMX-BF16 TILE INT8
constexpr uint32_t kSavesTiles = Bits(17, 18);                // XCR0: the tiles' shapes and data

}  // namespace

OrtkitCpu LevelOf(const CpuWords& cpu) {
  if (!Has(cpu.leaf1_ecx, kLeaf1EcxV2) || !Has(cpu.extended_ecx, kExtendedEcxV2)) return ORTKIT_CPU_X86_64;
  if (!Has(cpu.leaf1_ecx, kLeaf1EcxV3) || !Has(cpu.extended_ecx, kExtendedEcxV3)) return ORTKIT_CPU_X86_64_V2;
  if (!Has(cpu.leaf7_ebx, kLeaf7EbxV3) || !Has(cpu.saved_state, kSavesYmm)) return ORTKIT_CPU_X86_64_V2;
  if (!Has(cpu.leaf7_ebx, kLeaf7EbxV4) || !Has(cpu.saved_state, kSavesZmm)) return ORTKIT_CPU_X86_64_V3;
  if (!Has(cpu.leaf7_ecx, kLeaf7EcxVnni)) return ORTKIT_CPU_X86_64_V4;
  if (!Has(cpu.leaf7_part1_eax, kLeaf7Part1EaxBf16)) return ORTKIT_CPU_X86_64_V4_VNNI;
  if (!Has(cpu.leaf7_edx, kLeaf7EdxAmx) || !Has(cpu.saved_state, kSavesTiles)) return ORTKIT_CPU_X86_64_V4_BF16;
  return ORTKIT_CPU_X86_64_V4_AMX;
}

#if defined(__x86_64__)

namespace {

constexpr uint32_t kOsSavesState = Bits(27);  // OSXSAVE in leaf 1

uint32_t SavedState() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// A leaf that the processor does not have answers zeros.
CpuWords ReadCpu() {
  CpuWords words = {};
  uint32_t eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) words.leaf1_ecx = ecx;
  if (__get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx)) words.extended_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    words.leaf7_ebx = ebx;
    words.leaf7_ecx = ecx;
    words.leaf7_edx = edx;
    const uint32_t parts = eax;
    if (parts >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) words.leaf7_part1_eax = eax;
  }
  if (Has(words.leaf1_ecx, kOsSavesState)) words.saved_state = SavedState();
  return words;
}

// Tiles are 8 KB that the system saves for a thread only after the process has asked for them: once, for
// all its threads, those that run already too. It may be refused, as by a sandbox.
bool AskForTiles() {
  constexpr long kAskForState = 0x1023;  // ARCH_REQ_XCOMP_PERM of arch_prctl(2)
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

}  // namespace

const char* MissingCpu(OrtkitCpu needed) {
  OrtkitCpu have = LevelOf(ReadCpu());
  if (have == ORTKIT_CPU_X86_64_V4_AMX && needed == have && !AskForTiles()) have = ORTKIT_CPU_X86_64_V4_BF16;
  const bool runs = needed >= ORTKIT_CPU_X86_64 && needed <= have;
  return runs ? nullptr : CpuName(have);
}

#else

const char* MissingCpu(OrtkitCpu needed) {
  return needed == ORTKIT_CPU_AARCH64 ? nullptr : CpuName(ORTKIT_CPU_AARCH64);
}

#endif

}  // namespace ortkit
