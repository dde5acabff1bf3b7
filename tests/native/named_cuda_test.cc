// Ops under names of their users' on CUDA, against a made-up driver and runtime: run and judged by
// test_named_cuda.py. Prints "<test> ok" for each test, or what was wrong and where.
#include <dlfcn.h>

#include <cstring>

#include "expect.h"
#include "fake_cuda.h"
#include "fake_runtime.h"
#include "names.h"
#include "shim.h"

extern "C" ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base);

namespace {

constexpr int32_t kFloat = 1;
const fake_cuda::Control* cuda = nullptr;
int stream_of_runs;

// y = alpha x, x of any number of axes before n: in rows of up to 8 by "small", else by "large".
const int32_t kA[] = {0}, kB[] = {1}, kAB[] = {0, 1};
const char* const kSymbols[] = {"batch", "n"};
constexpr OrtkitExtent kOne = {1, 0, nullptr};
const OrtkitExtent kRows[] = {{1, 1, kA}, {1, 1, kB}};
const OrtkitTensor kTensors[] = {{"x", kFloat, 2, kRows}, {"alpha", kFloat, 0, nullptr}, {"y", kFloat, 2, kRows}};
const OrtkitArgument kArguments[] = {
    {ORTKIT_ARGUMENT_TENSOR, 0, {}}, {ORTKIT_ARGUMENT_NUMBER, 1, {}}, {ORTKIT_ARGUMENT_TENSOR, 2, {}},
    {ORTKIT_ARGUMENT_SIZE32, 0, {1, 2, kAB}}, {ORTKIT_ARGUMENT_NULL, 0, {}}, {ORTKIT_ARGUMENT_NULL, 0, {}}};
const OrtkitImage kSmallImages[] = {{80, 0, "cubin 80 small", 0}, {80, 1, "ptx 80 small", 0}};
const OrtkitImage kLargeImages[] = {{80, 0, "cubin 80 large", 0}, {80, 1, "ptx 80 large", 0}};
const OrtkitStep kSmallSteps[] = {{"small", {{{1, 1, kA}, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 6, kArguments, 2, kSmallImages, 0, nullptr, nullptr}};
const OrtkitStep kLargeSteps[] = {{"large", {{{1, 1, kA}, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 6, kArguments, 2, kLargeImages, 0, nullptr, nullptr}};
// Both for aligned data only: the attribute, which lies on the host, must not count.
const OrtkitVariant kSmallVariants[] = {{0, nullptr, 1, 1, kSmallSteps, 0, nullptr}};
const OrtkitVariant kLargeVariants[] = {{0, nullptr, 1, 1, kLargeSteps, 0, nullptr}};
const OrtkitCudaKernel kSmall = {1, kSmallVariants}, kLarge = {1, kLargeVariants};

int32_t OnCpu(char* const* data, const int64_t* sizes, int64_t begin, int64_t end) {
  for (int64_t i = begin * sizes[1]; i < end * sizes[1]; ++i) {
    reinterpret_cast<float*>(data[2])[i] = *reinterpret_cast<float*>(data[1]) * reinterpret_cast<float*>(data[0])[i];
  }
  return 0;
}

constexpr OrtkitOp Op(OrtkitCall call, const OrtkitCudaKernel* kernel) {
  return {"mine::Scaled", "0", 2, kSymbols, 2, 1, kTensors, 0, nullptr, 1, kRows, {1, 1, kB}, 100, 0, 0, 0, 0, nullptr, call, kernel};
}
const OrtkitOp kCpuOp = Op(OnCpu, nullptr), kSmallOp = Op(nullptr, &kSmall), kLargeOp = Op(nullptr, &kLarge);
const int32_t kPlaces[] = {0, -2}, kStars[] = {1, 0, 1}, kThere[] = {1};
const OrtkitFixed kNoFixed[] = {{0, 0, 0}};
const OrtkitFixed kTwice[] = {{1, 0, 2.0f}};
const OrtkitCondition kUpTo8[] = {{{1, 1, kB}, 1, 8}};
const OrtkitCondition kUpTo100[] = {{{1, 1, kB}, 1, 100}};
const OrtkitChoice kChoices[] = {
    {&kCpuOp, kPlaces, kStars, 1, kThere, 0, kNoFixed, 0, nullptr, nullptr},
    {&kSmallOp, kPlaces, kStars, 1, kThere, 0, kNoFixed, 1, kUpTo8, nullptr},
    {&kLargeOp, kPlaces, kStars, 1, kThere, 0, kNoFixed, 1, kUpTo100, nullptr}};
const OrtkitChoice kTwiceChoices[] = {{&kLargeOp, kPlaces, kStars, 1, kThere, 1, kTwice, 0, nullptr, nullptr}};
const int32_t kTypes[] = {kFloat}, kKinds[] = {0};
// The one that is read stands where only its own alignment makes its address a multiple of 16.
const OrtkitAttribute kAttributes[] = {{"unread", 0, 0, 7, 0}, {"alpha", 1, 0, 0, 2.0f}};
const OrtkitNamedOp kNamed[] = {
    {"mine", "Scaled", 1, 1, kTypes, kKinds, 1, kTypes, 2, kAttributes, 3, kChoices, nullptr, 0, nullptr},
    {"mine", "Twice", 1, 1, kTypes, kKinds, 1, kTypes, 2, kAttributes, 1, kTwiceChoices, nullptr, 0, nullptr}};
OrtkitStorage storage[ORTKIT_MAX_RUNTIMES * 2 * 2];

std::string launched;

void Scale(const fake_cuda::Launch& launch) {
  launched = launch.entry;
  EXPECT(launch.stream == &stream_of_runs);
  for (int32_t i = 0; i < launch.Get<int32_t>(3); ++i) launch.Get<float*>(2)[i] = launch.Get<float>(1) * launch.Get<float*>(0)[i];
}

struct Session {
  explicit Session(const char* target) {
    options.config["ortkit.fused.target"] = target;
    EXPECT_TEXT(fake::Take(RegisterCustomOps(&options, fake::Base())), "");
  }
  std::string Ops() const {
    std::string text;
    for (const ort::CustomOp* op : options.domains.at(0)->ops) {
      text += std::string(op->GetName(op)) + (op->GetExecutionProviderType(op) ? "@cuda " : " ");
    }
    return text;
  }
  const ort::CustomOp* Find(const char* name) const {
    for (const ort::CustomOp* op : options.domains.at(0)->ops) {
      if (!strcmp(op->GetName(op), name) && op->GetExecutionProviderType(op) != nullptr) return op;
    }
    return nullptr;
  }
  // Runs a node on x = 0, 1, 2 ...; returns what went wrong.
  std::string Run(const char* name, const ort::KernelInfo& info, std::vector<int64_t> shape, float alpha) const {
    const ort::CustomOp* op = Find(name);
    void* kernel = nullptr;
    std::string problem = fake::Take(op->CreateKernelV2(op, fake::Table(), &info, &kernel));
    if (!problem.empty()) return problem;
    ort::Value x(kFloat, shape, 4);
    for (size_t i = 0; i < x.count; ++i) x.as<float>()[i] = float(i);
    ort::KernelContext context;
    context.inputs = {&x};
    context.output_types = {kFloat};
    context.outputs = {nullptr};
    context.stream = &stream_of_runs;
    problem = fake::Take(op->KernelComputeV2(kernel, &context));
    op->KernelDestroy(kernel);
    if (!problem.empty()) return problem;
    EXPECT(context.outputs[0]->dims == shape);
    for (size_t i = 0; i < x.count; ++i) EXPECT(context.outputs[0]->as<float>()[i] == alpha * float(i));
    return "";
  }
  ort::SessionOptions options;
};

bool NothingIsLeft() {
  const fake_cuda::Counts counts = cuda->Count();
  return counts.contexts == 0 && counts.modules == 0 && counts.mistakes == 0 && fake::LiveStatuses() == 0 && fake::LiveAllocators() == 0;
}

void EachTargetGetsItsKernels() {
  EXPECT_TEXT(Session("cuda").Ops(), "Scaled Scaled@cuda Twice@cuda ");
  EXPECT_TEXT(Session("cpu").Ops(), "Scaled ");
  const Session session("cpu");
  EXPECT(session.options.config.count("mine::Scaled") == 1 && session.options.config.count("mine::Twice") == 0);
  const int32_t old[1][2] = {{75, 64 << 10}};
  cuda->SetDevices(old, 1);
  const Session without("cuda");
  EXPECT_TEXT(without.Ops(), "Scaled ");
  EXPECT_TEXT(without.options.config.at("mine::Twice@left_out"), "no image for sm_75 of its kernel for CUDA");
}

void TheFirstKernelForTheSizesRuns() {
  const Session session("cuda");
  ort::KernelInfo info = {1, 1, 0};
  const struct { std::vector<int64_t> shape; const char* entry; } cases[] = {
      {{3, 8}, "small"}, {{8}, "small"}, {{2, 3, 9}, "large"}, {{100}, "large"}, {{2, 0, 5}, ""}, {{0}, ""}};
  for (const auto& one : cases) {
    launched = "";
    EXPECT_TEXT(session.Run("Scaled", info, one.shape, 2.0f), "");
    EXPECT_TEXT(launched, one.entry);
  }
  EXPECT_TEXT(session.Run("Scaled", info, {101}, 2.0f), "2 mine::Scaled: this library has no kernel for the sizes of the node's inputs");
  EXPECT(NothingIsLeft());
}

void AttributesArePassedByValue() {
  const Session session("cuda");
  ort::KernelInfo info = {1, 1, 0};
  info.reals["alpha"] = -0.5f;
  EXPECT_TEXT(session.Run("Scaled", info, {3, 4}, -0.5f), "");
  EXPECT_TEXT(session.Run("Twice", info, {3, 4}, 2.0f), "2 mine::Twice: this library has no kernel for the values of its attributes");
  info.reals["alpha"] = 2.0f;
  EXPECT_TEXT(session.Run("Twice", info, {3, 4}, 2.0f), "");
  info.reals.clear();
  info.integers["alpha"] = 2;
  EXPECT_TEXT(session.Run("Scaled", info, {3, 4}, 2.0f), "2 mine::Scaled: the attribute alpha is an integer, expected a float");
  EXPECT(NothingIsLeft());
}

struct Test {
  const char* name;
  void (*run)();
};
const Test tests[] = {
    {"each target gets its kernels", EachTargetGetsItsKernels},
    {"the first kernel for the sizes runs", TheFirstKernelForTheSizesRuns},
    {"attributes are passed by value", AttributesArePassedByValue},
};

}  // namespace

#if defined(__x86_64__)
constexpr OrtkitCpu kHere = ORTKIT_CPU_X86_64;
#else
constexpr OrtkitCpu kHere = ORTKIT_CPU_AARCH64;
#endif
const OrtkitManifest ortkit_manifest = {ORTKIT_MANIFEST_VERSION, kHere, "ortkit.fused", 0, nullptr, nullptr, &ortkit_cuda};
const OrtkitNames ortkit_names = {ORTKIT_NAMES_VERSION, 2, kNamed, storage, &ortkit_names_cuda};

int main() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  cuda = driver == nullptr ? nullptr : static_cast<const fake_cuda::Control*>(dlsym(driver, "fake_cuda_control"));
  if (cuda == nullptr) return 2;
  for (const char* entry : {"small", "large"}) cuda->Define(entry, Scale);
  for (const Test& test : tests) {
    const int before = mistakes;
    const int32_t h100[1][2] = {{90, 227 << 10}};
    cuda->SetDevices(h100, 1);
    test.run();
    printf("%s %s\n", test.name, mistakes == before ? "ok" : "FAILED");
  }
  fake::ReleaseDomains();
  return mistakes == 0 ? 0 : 1;
}
