// Loads a kernel library, runs its op "add_rows" on a made-up device and prints what it launches.
// Built by test_cuda_launches.py.
//
// usage: launch_probe LIBRARY ARCHITECTURE SHARED_BYTES (ENTRY PARAMETERS)...
// reads lines "a b offset": X float[a, b] beginning `offset` bytes late, W float[b]
// and writes for each "<entry> <blocks> <threads> <shared bytes> <parameter>..." per launch, then "." or
// the status's text. A parameter is t<i> for tensor i, scratch, or a number.
#include <dlfcn.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fake_cuda.h"
#include "fake_runtime.h"

namespace {

using Register = ort::Status*(ort::SessionOptions*, const ort::ApiBase*);

ort::KernelContext* running = nullptr;
std::map<std::string, int> counts_of;

void Print(const fake_cuda::Launch& launch) {
  printf("%s %ux%ux%u %u %u", launch.entry, launch.blocks[0], launch.blocks[1], launch.blocks[2], launch.threads,
         launch.shared_bytes);
  std::vector<const char*> tensors;
  for (const ort::Value* input : running->inputs) tensors.push_back(input->data);
  tensors.push_back(running->outputs[0]->data);
  for (int i = 0; i < counts_of[launch.entry]; ++i) {
    const auto value = launch.Get<uint64_t>(i);
    size_t place = 0;
    while (place < tensors.size() && reinterpret_cast<uintptr_t>(tensors[place]) != value) ++place;
    if (value != 0 && place < tensors.size()) {
      printf(" t%zu", place);
    } else if (value > uint64_t{1} << 40) {
      printf(" scratch");  // no size is that large here
    } else {
      printf(" %" PRIu64, value);
    }
  }
  printf("\n");
}

// Values of a run may not leave with it: the shim frees scratch before this prints the status.
std::string Run(const ort::CustomOp* op, void* kernel, int64_t a, int64_t b, size_t offset) {
  ort::Value x(1, {a, b}, 4), w(1, {b}, 4);
  std::vector<char> late(x.count * 4 + 64 + offset);
  char* const owned = x.data;
  if (offset != 0) {
    char* const begin = late.data() + (64 - reinterpret_cast<uintptr_t>(late.data()) % 64) % 64;
    x.data = begin + offset;
  }
  ort::KernelContext context;
  context.inputs = {&x, &w};
  context.output_types = {1};
  context.outputs = {nullptr};
  running = &context;
  const std::string text = fake::Take(op->KernelComputeV2(kernel, &context));
  x.data = owned;
  return text;
}

}  // namespace

int main(int count, char** arguments) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr || library == nullptr) return fprintf(stderr, "%s\n", dlerror()), 2;
  const auto* cuda = static_cast<const fake_cuda::Control*>(dlsym(driver, "fake_cuda_control"));
  const int32_t device[2] = {atoi(arguments[2]), atoi(arguments[3])};
  cuda->SetDevices(&device, 1);
  for (int i = 4; i + 1 < count; i += 2) {
    cuda->Define(arguments[i], Print);
    counts_of[arguments[i]] = atoi(arguments[i + 1]);
  }
  ort::SessionOptions options;
  options.config["ortkit.fused.target"] = "cuda";
  auto* enter = reinterpret_cast<Register*>(dlsym(library, "RegisterCustomOps"));
  const std::string problem = fake::Take(enter(&options, fake::Base()));
  if (!problem.empty() || options.domains.empty() || options.domains[0]->ops.empty()) {
    return printf("not registered: %s\n", problem.c_str()), 0;
  }
  const ort::CustomOp* op = options.domains[0]->ops[0];
  const ort::KernelInfo info = {2, 1};
  void* kernel = nullptr;
  const std::string refusal = fake::Take(op->CreateKernelV2(op, fake::Table(), &info, &kernel));
  if (!refusal.empty()) return printf("not made: %s\n", refusal.c_str()), 0;
  long long a = 0, b = 0, offset = 0;
  while (scanf("%lld %lld %lld", &a, &b, &offset) == 3) {
    const std::string text = Run(op, kernel, a, b, static_cast<size_t>(offset));
    printf("%s\n", text.empty() ? "." : text.c_str());
  }
  op->KernelDestroy(kernel);
  fake::ReleaseDomains();
  return 0;
}
