// What this machine's processor can run, as the levels of the x86-64 psABI.
#include "shim.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ortkit {

const char* CpuName(OrtkitCpu cpu) {
  switch (cpu) {
    case ORTKIT_CPU_X86_64: return "x86-64";
    case ORTKIT_CPU_X86_64_V2: return "x86-64-v2";
    case ORTKIT_CPU_X86_64_V3: return "x86-64-v3";
    case ORTKIT_CPU_X86_64_V4: return "x86-64-v4";
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

}  // namespace

OrtkitCpu LevelOf(const CpuWords& cpu) {
  if (!Has(cpu.leaf1_ecx, kLeaf1EcxV2) || !Has(cpu.extended_ecx, kExtendedEcxV2)) return ORTKIT_CPU_X86_64;
  if (!Has(cpu.leaf1_ecx, kLeaf1EcxV3) || !Has(cpu.extended_ecx, kExtendedEcxV3)) return ORTKIT_CPU_X86_64_V2;
  if (!Has(cpu.leaf7_ebx, kLeaf7EbxV3) || !Has(cpu.saved_state, kSavesYmm)) return ORTKIT_CPU_X86_64_V2;
  if (!Has(cpu.leaf7_ebx, kLeaf7EbxV4) || !Has(cpu.saved_state, kSavesZmm)) return ORTKIT_CPU_X86_64_V3;
  return ORTKIT_CPU_X86_64_V4;
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
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) words.leaf7_ebx = ebx;
  if (Has(words.leaf1_ecx, kOsSavesState)) words.saved_state = SavedState();
  return words;
}

}  // namespace

const char* MissingCpu(OrtkitCpu needed) {
  const OrtkitCpu have = LevelOf(ReadCpu());
  const bool runs = needed >= ORTKIT_CPU_X86_64 && needed <= have;
  return runs ? nullptr : CpuName(have);
}

#else

const char* MissingCpu(OrtkitCpu needed) {
  return needed == ORTKIT_CPU_AARCH64 ? nullptr : CpuName(ORTKIT_CPU_AARCH64);
}

#endif

}  // namespace ortkit
