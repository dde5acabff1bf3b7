// A tool for NVTX that prints ranges: what NVTX_INJECTION64_PATH names. Built by test_cuda_nvtx.py.
// FAKE_NVTX=refuse lets it answer that it does not want to be one, =half that it takes no ends.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Callbacks {
  size_t bytes;
  int (*GetModuleFunctionTable)(int32_t module, void (****table)(), uint32_t* count);
};
struct Version {
  size_t bytes;
  uint32_t version;
  uint32_t reserved;
  void (*SetInjectionVersion)(uint32_t);
};

int Push(const char* name) {
  printf("push %s\n", name);
  return 0;
}

int Pop() {
  printf("pop\n");
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  const char* wish = getenv("FAKE_NVTX");
  const auto* callbacks = static_cast<const Callbacks*>(export_table(1));
  const auto* version = static_cast<const Version*>(export_table(3));
  if (callbacks->bytes < sizeof(Callbacks) || version->version != 3 || export_table(7) != nullptr) return 0;
  version->SetInjectionVersion(3);
  void (***table)() = nullptr;
  uint32_t count = 0;
  if (callbacks->GetModuleFunctionTable(2, &table, &count) != 0) return 0;  // no names of CUDA's things
  if (callbacks->GetModuleFunctionTable(1, &table, &count) != 1 || count < 12) return 0;
  if (wish != nullptr && !strcmp(wish, "refuse")) return 0;
  *table[9] = reinterpret_cast<void (*)()>(Push);
  if (wish == nullptr || strcmp(wish, "half") != 0) *table[11] = reinterpret_cast<void (*)()>(Pop);
  return 1;
}
