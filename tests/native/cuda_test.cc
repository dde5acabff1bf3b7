// The shim's kernels for CUDA against a made-up driver (fake_cuda.h) and runtime (fake_runtime.h): run
// and judged by test_cuda_shim.py. Prints "<test> ok" for each test, or what was wrong and where.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "expect.h"
#include "fake_cuda.h"
#include "fake_runtime.h"
#include "shim.h"

extern "C" ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base);

namespace {

constexpr int32_t kFloat = 1;
const fake_cuda::Control* cuda = nullptr;
constexpr int32_t kH100[2] = {90, 227 << 10};
int stream_of_runs;

// ---- the ops
const int32_t kA[] = {0}, kB[] = {1}, kAB[] = {0, 1};
const char* const kSymbols[] = {"a", "b"};
constexpr int64_t kAny = INT64_MAX;
constexpr OrtkitExtent kOne = {1, 0, nullptr};
const OrtkitExtent kRow[] = {{1, 1, kB}};
const OrtkitExtent kRows[] = {{1, 1, kA}, {1, 1, kB}};
const OrtkitTensor kTensors[] = {{"X", kFloat, 2, kRows}, {"W", kFloat, 1, kRow}, {"Y", kFloat, 2, kRows}};
constexpr OrtkitExtent kSizeA = {1, 1, kA}, kSizeB = {1, 1, kB}, kSizeAB = {1, 2, kAB};

constexpr OrtkitArgument Tensor(int32_t index) { return {ORTKIT_ARGUMENT_TENSOR, index, {}}; }
constexpr OrtkitArgument Scratch(int32_t index) { return {ORTKIT_ARGUMENT_SCRATCH, index, {}}; }
constexpr OrtkitArgument Size32(OrtkitExtent extent) { return {ORTKIT_ARGUMENT_SIZE32, 0, extent}; }
constexpr OrtkitArgument Size64(OrtkitExtent extent) { return {ORTKIT_ARGUMENT_SIZE64, 0, extent}; }
constexpr OrtkitArgument kNull = {ORTKIT_ARGUMENT_NULL, 0, {}};

// Y = X + W in one launch: blocks of 4 columns along x, a row along y.
const OrtkitImage kAddImages[] = {
    {80, 0, "cubin 80 add", 0}, {90, 0, "cubin 90aadd", 1}, {80, 1, "ptx 80 add", 0}};
const OrtkitArgument kAddArguments[] = {Tensor(0), Tensor(1), Tensor(2), Size64(kSizeA), Size32(kSizeB), kNull, kNull};
const OrtkitStep kAddSteps[] = {
    {"add", {{kSizeB, 4}, {kSizeA, 1}, {kOne, 1}}, 128, 0, 7, kAddArguments, 3, kAddImages, 0, nullptr, nullptr}};
const OrtkitVariant kAddVariants[] = {{0, nullptr, 0, 1, kAddSteps, 0, nullptr}};
const OrtkitCudaKernel kAdd = {1, kAddVariants};

// Sums of rows in two launches with scratch between them, and much shared memory in the first.
const OrtkitImage kPartImages[] = {{80, 0, "cubin 80 part", 0}, {80, 1, "ptx 80 part", 0}};
const OrtkitImage kJoinImages[] = {{80, 0, "cubin 80 join", 0}, {80, 1, "ptx 80 join", 0}};
const OrtkitArgument kPartArguments[] = {Tensor(0), Scratch(0), Scratch(1), Size32(kSizeAB), kNull, kNull};
const OrtkitArgument kJoinArguments[] = {Scratch(0), Scratch(1), Tensor(1), Tensor(2), Size32(kSizeAB), kNull, kNull};
const OrtkitStep kSumSteps[] = {
    {"part", {{kSizeAB, 8}, {kOne, 1}, {kOne, 1}}, 256, 100 << 10, 6, kPartArguments, 2, kPartImages, 0, nullptr, nullptr},
    {"join", {{kSizeAB, 8}, {kOne, 1}, {kOne, 1}}, 64, 0, 7, kJoinArguments, 2, kJoinImages, 0, nullptr, nullptr}};
const OrtkitExtent kSumScratch[] = {{4, 2, kAB}, {0, 0, nullptr}, {64, 0, nullptr}};
const OrtkitVariant kSumVariants[] = {{0, nullptr, 0, 2, kSumSteps, 3, kSumScratch}};
const OrtkitCudaKernel kSum = {1, kSumVariants};

// Four variants by sizes and addresses, of which two need as much shared memory as few devices have.
const OrtkitImage kFastImages[] = {{90, 0, "cubin 90 fast", 0}};
const OrtkitImage kWideImages[] = {{80, 1, "ptx 80 wide", 0}};
const OrtkitImage kNarrowImages[] = {{80, 1, "ptx 80 slow", 0}};
const OrtkitArgument kPickArguments[] = {Tensor(0), Tensor(2), Size64(kSizeAB)};
const OrtkitStep kFastSteps[] = {{"fast", {{kSizeAB, 16}, {kOne, 1}, {kOne, 1}}, 32, 0, 3, kPickArguments, 1, kFastImages, 0, nullptr, nullptr}};
const OrtkitStep kWideSteps[] = {{"wide", {{kSizeAB, 16}, {kOne, 1}, {kOne, 1}}, 32, 200 << 10, 3, kPickArguments, 1, kWideImages, 0, nullptr, nullptr}};
const OrtkitStep kSlowSteps[] = {{"slow", {{kSizeAB, 16}, {kOne, 1}, {kOne, 1}}, 32, 0, 3, kPickArguments, 1, kNarrowImages, 0, nullptr, nullptr}};
const OrtkitCondition kBy16[] = {{kSizeB, 16, kAny}, {kSizeA, 1, 3}};
const OrtkitCondition kSmall[] = {{kSizeAB, 1, 100}};
const OrtkitVariant kPickVariants[] = {
    {2, kBy16, 1, 1, kFastSteps, 0, nullptr},
    {2, kBy16, 0, 1, kWideSteps, 0, nullptr},
    {1, kSmall, 0, 1, kSlowSteps, 0, nullptr},
    {0, nullptr, 1, 1, kSlowSteps, 0, nullptr},
};
const OrtkitCudaKernel kPick = {4, kPickVariants};

// Boxes of X from its second row on, and of Y; another variant needs no maps.
const OrtkitExtent kMapDims[] = {{1, 1, kA}, {1, 1, kB}}, kMapStrides[] = {{4, 1, kB}};
const OrtkitTensorMap kMaps[] = {{0, 2, 128, 16, kMapDims, kMapStrides, {64, 32}}, {2, 2, 0, 0, kMapDims, kMapStrides, {8, 4}}};
constexpr OrtkitArgument Map(int32_t index) { return {ORTKIT_ARGUMENT_MAP, index, {}}; }
const OrtkitImage kMappedImages[] = {{90, 0, "cubin 90amapped", 0}};
const OrtkitArgument kMappedArguments[] = {Map(1), Map(0), Size32(kSizeB), kNull, kNull};
const OrtkitStep kMappedSteps[] = {{"mapped", {{kSizeA, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 5, kMappedArguments, 1, kMappedImages, 2, kMaps, nullptr}};
const OrtkitVariant kMappedVariants[] = {{0, nullptr, 1, 1, kMappedSteps, 0, nullptr}, {0, nullptr, 0, 1, kSlowSteps, 0, nullptr}};
const OrtkitCudaKernel kMapped = {2, kMappedVariants};
// A tensor without rows, of which there is no map.
const OrtkitExtent kNoRows[] = {{0, 0, nullptr}, {1, 1, kB}};
const OrtkitTensorMap kNoMaps[] = {{0, 2, 0, 0, kNoRows, kMapStrides, {8, 4}}, kMaps[1]};
const OrtkitStep kNotMappedSteps[] = {{"mapped", {{kSizeA, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 5, kMappedArguments, 1, kMappedImages, 2, kNoMaps, nullptr}};
const OrtkitVariant kNotMappedVariants[] = {{0, nullptr, 1, 1, kNotMappedSteps, 0, nullptr}, {0, nullptr, 0, 1, kSlowSteps, 0, nullptr}};
const OrtkitCudaKernel kNotMapped = {2, kNotMappedVariants};

// Boxes of scratch memory in the place of X.
const OrtkitTensorMap kScratchMaps[] = {{-1, 2, 128, 16, kMapDims, kMapStrides, {64, 32}}, kMaps[1]};
const OrtkitArgument kScratchMappedArguments[] = {Map(1), Map(0), Size32(kSizeB), Scratch(0), kNull};
const OrtkitStep kScratchMappedSteps[] = {{"mapped", {{kSizeA, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 5, kScratchMappedArguments, 1, kMappedImages, 2, kScratchMaps, nullptr}};
const OrtkitExtent kMapScratch[] = {{1000, 0, nullptr}};
const OrtkitVariant kScratchMappedVariants[] = {{0, nullptr, 1, 1, kScratchMappedSteps, 1, kMapScratch}, {0, nullptr, 0, 1, kSlowSteps, 0, nullptr}};
const OrtkitCudaKernel kScratchMapped = {2, kScratchMappedVariants};

// A product of X and scratch memory, in half precision.
constexpr int32_t kHalf = 10;
const OrtkitTensor kHalves[] = {{"X", kHalf, 2, kRows}, {"W", kHalf, 1, kRow}, {"Y", kHalf, 2, kRows}};
const OrtkitProduct kProduct = {0, -2, 2, 8, 16, kSizeA};  // of scratch 1
const OrtkitArgument kProductArguments[] = {Tensor(0), Scratch(0), Scratch(1), kNull, kNull};
const OrtkitStep kProductSteps[] = {{"mapped", {{kSizeA, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 5, kProductArguments, 1, kMappedImages, 0, nullptr, &kProduct}};
const OrtkitExtent kProductScratch[] = {{1000, 0, nullptr}, {5000, 0, nullptr}};
const OrtkitVariant kProductVariants[] = {{0, nullptr, 0, 1, kProductSteps, 2, kProductScratch}};
const OrtkitCudaKernel kMultiplied = {1, kProductVariants};

// The same of X and W.
const OrtkitProduct kProductOfInputs = {0, 1, 2, 8, 16, kSizeA};
const OrtkitStep kProductOfInputsSteps[] = {{"mapped", {{kSizeA, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 5, kProductArguments, 1, kMappedImages, 0, nullptr, &kProductOfInputs}};
const OrtkitVariant kProductOfInputsVariants[] = {{0, nullptr, 0, 1, kProductOfInputsSteps, 2, kProductScratch}};
const OrtkitCudaKernel kMultipliedInputs = {1, kProductOfInputsVariants};

// The same of two blocks of scratch memory.
const OrtkitProduct kProductOfScratch = {-1, -2, 2, 8, 16, kSizeA};
const OrtkitStep kProductOfScratchSteps[] = {{"mapped", {{kSizeA, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 5, kProductArguments, 1, kMappedImages, 0, nullptr, &kProductOfScratch}};
const OrtkitVariant kProductOfScratchVariants[] = {{0, nullptr, 0, 1, kProductOfScratchSteps, 2, kProductScratch}};
const OrtkitCudaKernel kMultipliedScratch = {1, kProductOfScratchVariants};

// What a device, a driver or a run may not take.
const OrtkitArgument kWideArguments[] = {Tensor(0), Size32({1 << 20, 2, kAB})};
const OrtkitImage kLimitImages[] = {{80, 1, "ptx 80 limit", 0}};
const OrtkitStep kTooWideSteps[] = {{"limit", {{kOne, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 2, kWideArguments, 1, kLimitImages, 0, nullptr, nullptr}};
const OrtkitStep kTallSteps[] = {{"limit", {{kOne, 1}, {{40000, 1, kA}, 1}, {kOne, 1}}, 32, 0, 0, nullptr, 1, kLimitImages, 0, nullptr, nullptr}};
const OrtkitStep kHugeSteps[] = {{"limit", {{{INT64_MAX, 1, kB}, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 0, nullptr, 1, kLimitImages, 0, nullptr, nullptr}};
const OrtkitVariant kTooWideVariants[] = {{0, nullptr, 0, 1, kTooWideSteps, 0, nullptr}};
const OrtkitVariant kTallVariants[] = {{0, nullptr, 0, 1, kTallSteps, 0, nullptr}};
const OrtkitVariant kHugeVariants[] = {{0, nullptr, 0, 1, kHugeSteps, 0, nullptr}};
const OrtkitCudaKernel kTooWide = {1, kTooWideVariants}, kTall = {1, kTallVariants}, kHuge = {1, kHugeVariants};

const OrtkitImage kBrokenImages[] = {{80, 1, "ptx 80 broken", 0}};
const OrtkitImage kNarrowBlockImages[] = {{80, 1, "ptx 80 narrow", 0}};
const OrtkitStep kBrokenSteps[] = {{"broken", {{kOne, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 0, nullptr, 1, kBrokenImages, 0, nullptr, nullptr}};
const OrtkitStep kNarrowSteps[] = {{"narrow", {{kOne, 1}, {kOne, 1}, {kOne, 1}}, 128, 0, 0, nullptr, 1, kNarrowBlockImages, 0, nullptr, nullptr}};
const OrtkitStep kMissingSteps[] = {{"missing", {{kOne, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 0, nullptr, 1, kLimitImages, 0, nullptr, nullptr}};
const OrtkitVariant kBrokenVariants[] = {{0, nullptr, 0, 1, kBrokenSteps, 0, nullptr}};
const OrtkitVariant kNarrowVariants[] = {{0, nullptr, 0, 1, kNarrowSteps, 0, nullptr}};
const OrtkitVariant kMissingVariants[] = {{0, nullptr, 0, 1, kMissingSteps, 0, nullptr}};
const OrtkitCudaKernel kBroken = {1, kBrokenVariants}, kNarrow = {1, kNarrowVariants}, kMissing = {1, kMissingVariants};

// A cubin for one architecture and nothing else.
const OrtkitImage kOnlyImages[] = {{90, 0, "cubin 90 add", 0}};
const OrtkitStep kOnlySteps[] = {{"add", {{kOne, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 0, nullptr, 1, kOnlyImages, 0, nullptr, nullptr}};
const OrtkitVariant kOnlyVariants[] = {{0, nullptr, 0, 1, kOnlySteps, 0, nullptr}};
const OrtkitCudaKernel kOnly = {1, kOnlyVariants};

// Made by a newer toolkit than the driver's: the cubin is none to it, the PTX may be.
const OrtkitImage kFreshImages[] = {{90, 0, "cubin 90xfresh", 0}, {80, 1, "ptx 80 fresh", 0}};
const OrtkitImage kNewerImages[] = {{90, 0, "cubin 90xnewer", 0}, {80, 1, "ptx 80 newer", 0}};
const OrtkitImage kOldImages[] = {{90, 0, "cubin 90xfresh", 0}};
const OrtkitStep kFreshSteps[] = {{"fresh", {{kOne, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 0, nullptr, 2, kFreshImages, 0, nullptr, nullptr}};
const OrtkitStep kNewerSteps[] = {{"newer", {{kOne, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 0, nullptr, 2, kNewerImages, 0, nullptr, nullptr}};
const OrtkitStep kOldSteps[] = {{"fresh", {{kOne, 1}, {kOne, 1}, {kOne, 1}}, 32, 0, 0, nullptr, 1, kOldImages, 0, nullptr, nullptr}};
const OrtkitVariant kFreshVariants[] = {{0, nullptr, 0, 1, kFreshSteps, 0, nullptr}};
const OrtkitVariant kNewerVariants[] = {{0, nullptr, 0, 1, kNewerSteps, 0, nullptr}};
const OrtkitVariant kOldVariants[] = {{0, nullptr, 0, 1, kOldSteps, 0, nullptr}};
const OrtkitCudaKernel kFresh = {1, kFreshVariants}, kNewer = {1, kNewerVariants}, kOld = {1, kOldVariants};

int32_t AddOnCpu(char* const* data, const int64_t* sizes, int64_t begin, int64_t end) {
  for (int64_t i = begin * sizes[1]; i < end * sizes[1]; ++i) {
    reinterpret_cast<float*>(data[2])[i] = reinterpret_cast<float*>(data[0])[i] + reinterpret_cast<float*>(data[1])[i % sizes[1]];
  }
  return 0;
}

size_t FirstToFirst(int32_t** inputs, int32_t** outputs) {
  static int32_t zero[] = {0};
  *inputs = *outputs = zero;
  return 1;
}

constexpr OrtkitOp Op(const char* name, OrtkitCall call, const OrtkitCudaKernel* kernel) {
  return {name, "0", 2, kSymbols, 2, 1, kTensors, 0, nullptr, 1, kRows, {1, 1, kB}, 100, 0, 0, 0, 0, call == nullptr ? nullptr : FirstToFirst, call, kernel};
}
const OrtkitOp kOps[] = {
    Op("add", AddOnCpu, &kAdd), Op("broken", nullptr, &kBroken), Op("cpu_only", AddOnCpu, nullptr),
    Op("fresh", nullptr, &kFresh), Op("huge", nullptr, &kHuge), Op("mapped", nullptr, &kMapped),
    Op("mapped_scratch", nullptr, &kScratchMapped), Op("missing", nullptr, &kMissing),
    {"multiplied", "0", 2, kSymbols, 2, 1, kHalves, 0, nullptr, 1, kRows, {1, 1, kB}, 100, 0, 0, 0, 0, nullptr, nullptr, &kMultiplied},
    {"multiplied_inputs", "0", 2, kSymbols, 2, 1, kHalves, 0, nullptr, 1, kRows, {1, 1, kB}, 100, 0, 0, 0, 0, nullptr, nullptr, &kMultipliedInputs},
    {"multiplied_scratch", "0", 2, kSymbols, 2, 1, kHalves, 0, nullptr, 1, kRows, {1, 1, kB}, 100, 0, 0, 0, 0, nullptr, nullptr, &kMultipliedScratch},
    Op("narrow", nullptr, &kNarrow), Op("newer", nullptr, &kNewer), Op("not_mapped", nullptr, &kNotMapped),
    Op("old", nullptr, &kOld),
    Op("only_90", AddOnCpu, &kOnly), Op("pick", nullptr, &kPick), Op("sum", nullptr, &kSum),
    Op("tall", nullptr, &kTall), Op("too_wide", nullptr, &kTooWide)};
constexpr int32_t kOpCount = sizeof kOps / sizeof *kOps;
OrtkitStorage storage[ORTKIT_MAX_RUNTIMES * (kOpCount + 2)];  // "add" and "only_90" have two

// ---- their bodies: what a GPU would do, block by block
std::vector<std::string> launched;  // by one thread

std::string early;  // for each launch whether it may begin early

void Note(const fake_cuda::Launch& launch) {
  early += launch.is_early ? '1' : '0';
  launched.push_back(std::string(launch.entry) + " " + std::to_string(launch.blocks[0]) + "x" +
                     std::to_string(launch.blocks[1]) + "x" + std::to_string(launch.blocks[2]) + " " +
                     std::to_string(launch.threads) + " " + std::to_string(launch.shared_bytes));
  EXPECT(launch.stream == &stream_of_runs);
}

void AddBody(const fake_cuda::Launch& launch) {
  const int64_t rows = launch.Get<int64_t>(3), columns = launch.Get<int32_t>(4);
  EXPECT(launch.Get<void*>(5) == nullptr && launch.Get<void*>(6) == nullptr);
  for (uint32_t y = 0; y < launch.blocks[1]; ++y) {
    for (int64_t i = 0; i < launch.blocks[0] * 4; ++i) {
      if (i >= columns || y >= rows) continue;
      launch.Get<float*>(2)[y * columns + i] = launch.Get<float*>(0)[y * columns + i] + launch.Get<float*>(1)[i];
    }
  }
}
void NotedAdd(const fake_cuda::Launch& launch) {
  Note(launch);
  AddBody(launch);
}
void PartBody(const fake_cuda::Launch& launch) {
  Note(launch);
  EXPECT(launch.Get<void*>(2) == nullptr);  // of no bytes
  for (int32_t i = 0; i < launch.Get<int32_t>(3); ++i) launch.Get<float*>(1)[i] = 2 * launch.Get<float*>(0)[i];
}
void JoinBody(const fake_cuda::Launch& launch) {
  Note(launch);
  for (int32_t i = 0; i < launch.Get<int32_t>(4); ++i) launch.Get<float*>(3)[i] = launch.Get<float*>(0)[i] + 1;
}
void PickBody(const fake_cuda::Launch& launch) { Note(launch); }

// ---- a session with them
struct Session {
  explicit Session(const char* target = "cuda") {
    if (target != nullptr) options.config["ortkit.fused.target"] = target;
    EXPECT_TEXT(fake::Take(RegisterCustomOps(&options, fake::Base())), "");
  }

  // "name" for the CPU, "name@cuda"; sorted.
  std::string Ops() const {
    std::vector<std::string> names;
    for (const ort::CustomOp* op : options.domains.at(0)->ops) {
      const char* provider = op->GetExecutionProviderType(op);
      EXPECT(provider == nullptr || !strcmp(provider, "CUDAExecutionProvider"));
      names.push_back(std::string(op->GetName(op)) + (provider ? "@cuda" : ""));
      EXPECT(options.config.count("ortkit.fused::" + names.back()) == 1);
    }
    std::sort(names.begin(), names.end());
    std::string text;
    for (const std::string& name : names) text += name + " ";
    return text;
  }

  const ort::CustomOp* Find(const char* name) const {
    for (const ort::CustomOp* op : options.domains.at(0)->ops) {
      if (!strcmp(op->GetName(op), name) && op->GetExecutionProviderType(op) != nullptr) return op;
    }
    EXPECT(!"no such op");
    return nullptr;
  }

  std::string Make(const char* name, void** kernel, int32_t device = 0) const {
    const ort::CustomOp* op = Find(name);
    const ort::KernelInfo info = {2, 1, device};
    return fake::Take(op->CreateKernelV2(op, fake::Table(), &info, kernel));
  }

  std::string Run(const char* name, ort::KernelContext* context, int32_t device = 0) const {
    void* kernel = nullptr;
    const std::string problem = Make(name, &kernel, device);
    if (!problem.empty()) return problem;
    ort::Status* status = Find(name)->KernelComputeV2(kernel, context);
    Find(name)->KernelDestroy(kernel);
    return fake::Take(status);
  }

  ort::SessionOptions options;
};

// X [a, b], W [b], filled with 0, 1, 2 ...; X may begin `offset` bytes later than it should.
struct Case {
  Case(int64_t a, int64_t b, size_t offset = 0) : x(kFloat, {a, b}, 4), w(kFloat, {b}, 4), shifted(x.count * 4 + offset) {
    for (size_t i = 0; i < x.count; ++i) x.as<float>()[i] = float(i);
    for (size_t i = 0; i < w.count; ++i) w.as<float>()[i] = float(i);
    owned = x.data;
    if (offset != 0) {
      const auto base = reinterpret_cast<uintptr_t>(shifted.data());
      x.data = shifted.data() + (64 - base % 64) % 64 + offset;
    }
    context.inputs = {&x, &w};
    context.output_types = {kFloat};
    context.outputs = {nullptr};
    context.stream = &stream_of_runs;
  }
  ~Case() { x.data = owned; }

  ort::Value x, w;
  std::vector<char> shifted;
  char* owned;
  ort::KernelContext context;
};

void Devices(std::initializer_list<std::pair<int32_t, int32_t>> devices) {
  std::vector<int32_t> flat;
  for (const auto& one : devices) flat.insert(flat.end(), {one.first, one.second});
  cuda->SetDevices(reinterpret_cast<const int32_t(*)[2]>(flat.data()), static_cast<int32_t>(devices.size()));
}

bool NothingIsLeft() {
  const fake_cuda::Counts counts = cuda->Count();
  return counts.contexts == 0 && counts.modules == 0 && counts.depth == 0 && counts.mistakes == 0 && fake::LiveStatuses() == 0 &&
         fake::LiveAllocators() == 0 && fake::LiveScratch() == 0;
}

// ---- tests
constexpr char kAllForCuda[] =
    "add add@cuda broken@cuda fresh@cuda huge@cuda mapped@cuda mapped_scratch@cuda missing@cuda multiplied@cuda multiplied_inputs@cuda multiplied_scratch@cuda narrow@cuda newer@cuda not_mapped@cuda old@cuda only_90 only_90@cuda pick@cuda sum@cuda tall@cuda too_wide@cuda ";
constexpr char kAllForCpu[] = "add cpu_only only_90 ";

void ASessionGetsTheKernelsOfItsTarget() {
  EXPECT_TEXT(Session("cuda").Ops(), kAllForCuda);
  EXPECT_TEXT(Session("cpu").Ops(), kAllForCpu);
  EXPECT_TEXT(Session(nullptr).Ops(), kAllForCuda);
  fake::HaveCuda(false);
  EXPECT_TEXT(Session(nullptr).Ops(), kAllForCpu);
  fake::HaveCuda(true);
  ort::SessionOptions options;
  options.config["ortkit.fused.target"] = "gpu";
  EXPECT_TEXT(fake::Take(RegisterCustomOps(&options, fake::Base())),
              "2 ortkit.fused: the entry ortkit.fused.target is 'gpu', expected cpu or cuda");
  Session twice("cuda");
  EXPECT_TEXT(fake::Take(RegisterCustomOps(&twice.options, fake::Base())), "");
  EXPECT_TEXT(twice.Ops(), kAllForCuda);
}

// What no device runs is not registered, so that its node becomes the function's body.
void WhatNoDeviceRunsIsLeftOut() {
  Devices({{80, 163 << 10}});
  EXPECT(Session().Ops().find("only_90") == std::string::npos);
  EXPECT(Session().Ops().find("pick@cuda") != std::string::npos);
  Devices({{80, 163 << 10}, {90, 227 << 10}});
  EXPECT_TEXT(Session().Ops(), kAllForCuda);
  Devices({{75, 64 << 10}});
  EXPECT_TEXT(Session().Ops(), "");
  Devices({{100, 227 << 10}});  // cubins are for one major architecture
  EXPECT(Session().Ops().find("only_90") == std::string::npos);
  EXPECT(Session().Ops().find("add@cuda") != std::string::npos);
  Devices({{80, 99 << 10}});
  EXPECT(Session().Ops().find("sum") == std::string::npos);  // it needs 100 KB a block
  Devices({{75, 64 << 10}, {80, 163 << 10}});
  const Session session;
  EXPECT_TEXT(session.options.config.at("ortkit.fused::only_90@left_out"),
              "no image for sm_75, sm_80 of kernel 0: the function body runs");
  EXPECT(session.options.config.count("ortkit.fused::add@left_out") == 0);
  EXPECT(session.options.config.count("ortkit.fused::cpu_only@left_out") == 0);
}

void OpsAreDescribedForCuda() {
  const Session session;
  const ort::CustomOp* op = session.Find("add");
  EXPECT(op->version == 24 && op->GetInputTypeCount(op) == 2 && op->GetOutputTypeCount(op) == 1);
  EXPECT(op->GetInputMemoryType(op, 0) == 0 && op->GetInputType(op, 0) == kFloat);
  EXPECT(op->GetMayInplace == nullptr && op->InferOutputShape != nullptr);
  ort::ShapeContext context = {{{kFloat, {-1, 4}, {"n", ""}}, {kFloat, {4}, {""}}}, {{}}};
  EXPECT_TEXT(fake::Take(op->InferOutputShape(op, &context)), "");
  EXPECT(context.outputs[0].names[0] == "n" && context.outputs[0].dims[1] == 4);
}

void BlocksFollowTheSizes() {
  const Session session;
  const struct { int64_t a, b; const char* launch; } cases[] = {
      {1, 1, "add 1x1x1 128 0"}, {3, 4, "add 1x3x1 128 0"}, {3, 5, "add 2x3x1 128 0"},
      {65535, 1, "add 1x65535x1 128 0"}, {7, 1000, "add 250x7x1 128 0"}, {1, 1001, "add 251x1x1 128 0"}};
  for (const auto& one : cases) {
    launched.clear();
    Case run(one.a, one.b);
    EXPECT_TEXT(session.Run("add", &run.context), "");
    EXPECT(launched == std::vector<std::string>{one.launch});
    bool is_right = true;
    for (int64_t i = 0; i < one.a * one.b; ++i) {
      is_right = is_right && run.context.outputs[0]->as<float>()[i] == float(i) + float(i % one.b);
    }
    EXPECT(is_right);
  }
}

void StepsRunInOrderWithScratchBetween() {
  const Session session;
  launched.clear();
  Case run(5, 5);
  EXPECT_TEXT(session.Run("sum", &run.context), "");
  EXPECT((launched == std::vector<std::string>{"part 4x1x1 256 102400", "join 4x1x1 64 0"}));
  EXPECT(run.context.outputs[0]->as<float>()[24] == 49.0f);
}

bool is_early_known = false;
bool has_maps = true;  // the driver
fake_cuda::Map first_map, second_map;

void TensorsAreMappedFromTheSizesOfARun() {
  const Session session;
  cuda->Define("mapped", [](const fake_cuda::Launch& launch) {
    Note(launch);
    first_map = launch.Get<fake_cuda::Map>(0);
    second_map = launch.Get<fake_cuda::Map>(1);
    EXPECT(launch.Get<int32_t>(2) == 8);
  });
  launched.clear();
  Case run(3, 8);
  EXPECT_TEXT(session.Run("mapped", &run.context), "");
  EXPECT(launched == std::vector<std::string>{has_maps ? "mapped 3x1x1 32 0" : "slow 2x1x1 32 0"});
  if (!has_maps) return;
  const fake_cuda::Map& x = second_map;
  EXPECT(x.address == run.x.data + 16 && x.type == 7 && x.rank == 2 && x.swizzle == 3);
  EXPECT(x.dims[0] == 8 && x.dims[1] == 3 && x.strides[0] == 32 && x.box[0] == 32 && x.box[1] == 64);
  const fake_cuda::Map& y = first_map;
  EXPECT(y.address == run.context.outputs[0]->data && y.swizzle == 0 && y.box[0] == 4 && y.box[1] == 8);
  cuda->Define("mapped", [](const fake_cuda::Launch& launch) {
    second_map = launch.Get<fake_cuda::Map>(1);
    EXPECT(second_map.address == launch.Get<char*>(3) + 16 && second_map.type == 7);
  });
  second_map = {};
  EXPECT_TEXT(session.Run("mapped_scratch", &run.context), "");
  EXPECT(second_map.rank == 2 && second_map.address != run.x.data + 16);
  Case odd(3, 7);  // rows of 28 bytes
  EXPECT_TEXT(session.Run("mapped", &odd.context), "1 ortkit.fused::mapped: cuTensorMapEncodeTiled failed with CUDA_ERROR_FAKE (1)");
  EXPECT(NothingIsLeft());
}

// As fake_cublas.cc has it.
struct FakeGemm {
  int64_t numbers[14];
  const void* places[4];
  float factors[2];
};

void ProductsAreCublasWhereItIs() {
  EXPECT(dlopen("libcublas.so.14", RTLD_NOW | RTLD_LOCAL) != nullptr);  // as another package brings it
  void* library = dlopen("libonnxruntime_providers_cuda.so", RTLD_NOW | RTLD_LOCAL);
  EXPECT(library != nullptr);
  auto* asked = static_cast<FakeGemm*>(dlsym(library, "fake_gemm"));
  auto* result = static_cast<int32_t*>(dlsym(library, "fake_gemm_result"));
  const Session session;
  static void *matrix = nullptr, *blocks[2] = {};
  cuda->Define("mapped", [](const fake_cuda::Launch& launch) { Note(launch), matrix = launch.Get<void*>(2); });
  int handle = 0;
  const auto run = [&](void* blas) {
    ort::Value x(kHalf, {3, 8}, 2), w(kHalf, {8}, 2);
    ort::KernelContext context;
    context.inputs = {&x, &w};
    context.output_types = {kHalf};
    context.outputs = {nullptr};
    context.stream = &stream_of_runs;
    context.blas = blas;
    launched.clear();
    *asked = {};
    EXPECT_TEXT(session.Run("multiplied", &context), "");
    if (blas == nullptr) return;
    const FakeGemm& gemm = *asked;
    EXPECT(gemm.places[0] == blas && gemm.places[2] == x.data && gemm.places[3] == context.outputs[0]->data);
    EXPECT(gemm.places[1] != nullptr && (matrix == nullptr || gemm.places[1] == matrix));
    // y^T of 8 x 3 is w, which lies in rows of 16, times x^T, in float16 with sums in float32.
    const int64_t wanted[] = {1, 0, 8, 3, 16, 2, 16, 2, 16, 2, 8, 68, -1, 1};
    EXPECT(std::equal(std::begin(wanted), std::end(wanted), gemm.numbers));
    EXPECT(gemm.factors[0] == 1.0f && gemm.factors[1] == 0.0f);
  };
  run(&handle);
  EXPECT(launched.empty());
  *result = 15;  // what it does not take, the step's code computes
  run(&handle);
  EXPECT(launched == std::vector<std::string>{"mapped 3x1x1 32 0"});
  *result = 0;
  run(nullptr);
  EXPECT(launched == std::vector<std::string>{"mapped 3x1x1 32 0"});
  ort::Value x(kHalf, {3, 8}, 2), w(kHalf, {8}, 2);
  ort::KernelContext context;
  context.inputs = {&x, &w};
  context.output_types = {kHalf};
  context.outputs = {nullptr};
  context.stream = &stream_of_runs;
  context.blas = &handle;
  EXPECT_TEXT(session.Run("multiplied_inputs", &context), "");
  EXPECT(asked->places[1] == w.data && asked->places[2] == x.data);
  cuda->Define("mapped", [](const fake_cuda::Launch& launch) {
    Note(launch);
    blocks[0] = launch.Get<void*>(1), blocks[1] = launch.Get<void*>(2);
  });
  *result = 15;
  EXPECT_TEXT(session.Run("multiplied_scratch", &context), "");
  *result = 0;
  EXPECT(asked->places[1] == blocks[1] && asked->places[2] == blocks[0] && asked->numbers[7] == 2);
  EXPECT(NothingIsLeft());
}

void OfNothingThereIsNoMap() {
  const Session session;
  launched.clear();
  Case run(3, 8);
  EXPECT_TEXT(session.Run("not_mapped", &run.context), "");
  EXPECT(launched == std::vector<std::string>{"slow 2x1x1 32 0"});
}

// Memory that launches on one stream may still use is not handed to another one.
void ScratchIsKeptForItsStream() {
  const Session session;
  void* kernel = nullptr;
  EXPECT_TEXT(session.Make("sum", &kernel), "");
  for (const char* entry : {"part", "join"}) cuda->Define(entry, [](const fake_cuda::Launch&) {});
  char streams[2];
  const auto run = [&](int64_t a, char* stream) {
    Case one(a, 5);
    one.context.stream = stream;
    EXPECT_TEXT(fake::Take(session.Find("sum")->KernelComputeV2(kernel, &one.context)), "");
    return fake::LiveScratch();
  };
  const int once = run(5, &streams[0]);
  EXPECT(once > 0);
  EXPECT(run(5, &streams[0]) == once && run(4, &streams[0]) == once);
  EXPECT(run(5, &streams[1]) == 2 * once);
  EXPECT(run(5, &streams[0]) == 2 * once);
  EXPECT(run(5000, &streams[0]) > 2 * once);  // what is there is too small
  cuda->Define("part", PartBody);
  cuda->Define("join", JoinBody);
  session.Find("sum")->KernelDestroy(kernel);
  EXPECT(fake::LiveScratch() == 0);
}

// Kernels of a session run one after the other: the largest of them has room for all.
void KernelsShareScratch() {
  const Session session;
  void* kernels[2] = {};
  for (void*& kernel : kernels) EXPECT_TEXT(session.Make("sum", &kernel), "");
  for (const char* entry : {"part", "join"}) cuda->Define(entry, [](const fake_cuda::Launch&) {});
  const auto run = [&](void* kernel) {
    Case one(5, 5);
    EXPECT_TEXT(fake::Take(session.Find("sum")->KernelComputeV2(kernel, &one.context)), "");
    return fake::LiveScratch();
  };
  const int once = run(kernels[0]);
  EXPECT(once > 0 && run(kernels[1]) == once);
  session.Find("sum")->KernelDestroy(kernels[0]);
  EXPECT(fake::LiveScratch() == once && run(kernels[1]) == once);
  session.Find("sum")->KernelDestroy(kernels[1]);
  EXPECT(fake::LiveScratch() == 0);
  cuda->Define("part", PartBody);
  cuda->Define("join", JoinBody);
}

// Two threads may run a kernel on one stream, launch by launch in any order.
void RunsAtATimeHaveScratchOfTheirOwn() {
  static std::function<void(const fake_cuda::Launch&)> at_part;
  const Session session;
  void* kernel = nullptr;
  EXPECT_TEXT(session.Make("sum", &kernel), "");
  const auto run = [&] {
    Case one(5, 5);
    EXPECT_TEXT(fake::Take(session.Find("sum")->KernelComputeV2(kernel, &one.context)), "");
    EXPECT(one.context.outputs[0]->as<float>()[24] == 49.0f);
  };
  std::vector<void*> seen;
  at_part = [&](const fake_cuda::Launch& launch) {
    seen.push_back(launch.Get<void*>(1));
    if (seen.size() == 1) run();  // another run, between the launches of the first
  };
  cuda->Define("part", [](const fake_cuda::Launch& launch) {
    PartBody(launch);
    at_part(launch);
  });
  run();
  EXPECT(seen.size() == 2 && seen[0] != seen[1]);
  cuda->Define("part", PartBody);
  session.Find("sum")->KernelDestroy(kernel);
  EXPECT(fake::LiveScratch() == 0);
}

void NothingToComputeLaunchesNothing() {
  const Session session;
  launched.clear();
  for (const auto& size : {std::pair<int64_t, int64_t>{0, 3}, {3, 0}, {0, 0}}) {
    for (const char* op : {"add", "sum", "pick", "tall"}) {
      Case run(size.first, size.second);
      EXPECT_TEXT(session.Run(op, &run.context), "");
      EXPECT((run.context.outputs[0]->dims == std::vector<int64_t>{size.first, size.second}));
    }
  }
  EXPECT(launched.empty());
}

void TheFirstVariantThatHoldsIsLaunched() {
  const Session session;
  const auto picked = [&](int64_t a, int64_t b, size_t offset) {
    launched.clear();
    Case run(a, b, offset);
    const std::string problem = session.Run("pick", &run.context);
    return problem.empty() ? launched.at(0).substr(0, 4) : problem;
  };
  EXPECT_TEXT(picked(3, 32, 0), "fast");
  EXPECT_TEXT(picked(3, 32, 4), "wide");  // X is not aligned
  EXPECT_TEXT(picked(4, 16, 0), "slow");  // more than 3 rows, few enough elements
  EXPECT_TEXT(picked(4, 16, 8), "slow");
  EXPECT_TEXT(picked(3, 33, 4), "slow");  // no multiple of 16
  EXPECT_TEXT(picked(4, 32, 0), "slow");
  EXPECT_TEXT(picked(4, 32, 4), "2 ortkit.fused::pick: tensor 'X' begins at an address that is no multiple of 16");
  EXPECT_TEXT(picked(4, 32, 2), "2 ortkit.fused::pick: tensor 'X' begins at an address that is no multiple of its elements' size");
  // Without an image for the first, and without the shared memory for the second.
  Devices({{80, 163 << 10}});
  EXPECT_TEXT(picked(3, 32, 0), "slow");
}

void WhatDoesNotFitIsRefused() {
  const Session session;
  const auto run = [&](const char* op, int64_t a, int64_t b) {
    Case one(a, b);
    return session.Run(op, &one.context);
  };
  EXPECT_TEXT(run("too_wide", 64, 32), "2 ortkit.fused::too_wide: a size of 2147483648 exceeds the 32 bits that its CUDA kernel has for it");
  EXPECT_TEXT(run("tall", 2, 1), "2 ortkit.fused::tall: its CUDA kernel would need 80000 blocks along axis 1, and 65535 are the most");
  EXPECT_TEXT(run("huge", 1, 2), "2 ortkit.fused::huge: a size exceeds 63 bits");
  EXPECT_TEXT(run("huge", 1, 1), "2 ortkit.fused::huge: its CUDA kernel would need 9223372036854775807 blocks along axis 0, and 2147483647 are the most");
  EXPECT_TEXT(run("missing", 1, 1), "1 ortkit.fused::missing: cuModuleGetFunction failed with CUDA_ERROR_FAKE (500)");
  EXPECT_TEXT(run("narrow", 1, 1), "1 ortkit.fused::narrow: a block of its kernel has 128 threads, and this GPU runs 64 of them");
  EXPECT_TEXT(run("broken", 1, 1),
              "1 ortkit.fused::broken: cuModuleLoadDataEx failed with CUDA_ERROR_FAKE (218) on sm_90 with a driver for CUDA 12.4, "
              "which may be too old: ptxas: broken");
  Case wrong(2, 3);
  wrong.w.dims = {4};
  EXPECT_TEXT(session.Run("add", &wrong.context), "2 ortkit.fused::add: input 'W' has size 4 in dim 0, and 'b' is 3 elsewhere");
  const ort::CustomOp* op = session.Find("add");
  const ort::KernelInfo info = {1, 1};
  void* kernel = nullptr;
  EXPECT_TEXT(fake::Take(op->CreateKernelV2(op, fake::Table(), &info, &kernel)),
              "2 ortkit.fused::add: the node has 1 inputs and 1 outputs, expected 2 and 1");
  // Registered for the other device.
  Devices({{90, 227 << 10}, {80, 99 << 10}});
  EXPECT_TEXT(session.Make("only_90", &kernel, 1),
              "1 ortkit.fused::only_90: its kernel does not run on this GPU (sm_80, 101376 bytes of shared memory for a block); "
              "it is for sm_90: build it with --arch sm_80, or load the model without the library");
  EXPECT_TEXT(session.Make("sum", &kernel, 1),
              "1 ortkit.fused::sum: its kernel does not run on this GPU (sm_80, 101376 bytes of shared memory for a block); "
              "it is for sm_80, from sm_80 on: build it with --arch sm_80, or load the model without the library");
  EXPECT_TEXT(session.Make("add", &kernel, 2), "1 ortkit.fused::add: cuDeviceGet failed with CUDA_ERROR_FAKE (101)");
}

// A driver older than the toolkit takes PTX where that is old enough, or is said to be too old.
// "add" waits for the launch before it, the two of "sum" do not.
void InAGraphALaunchBeginsWhileOursBeforeItEnds() {
  const Session session;
  const auto run = [&](const char* name) {
    Case one(3, 5);
    EXPECT_TEXT(session.Run(name, &one.context), "");
  };
  const auto runs = [&](std::initializer_list<const char*> names) {
    early.clear();
    for (const char* name : names) name == std::string("other") ? cuda->CaptureOther() : run(name);
    return early;
  };
  EXPECT_TEXT(runs({"add", "add"}), "00");
  cuda->Capture(true);
  EXPECT_TEXT(runs({"add", "add", "sum", "add", "add", "other", "add", "add"}), is_early_known ? "01000101" : "00000000");
  cuda->Capture(false);
  EXPECT_TEXT(runs({"add"}), "0");
  cuda->Capture(true);
  EXPECT_TEXT(runs({"add", "add"}), is_early_known ? "01" : "00");
  cuda->Capture(false);
}

void AnOldDriverGetsPtx() {
  const Session session;
  launched.clear();
  Case run(2, 3);
  EXPECT_TEXT(session.Run("fresh", &run.context), "");
  EXPECT_TEXT(cuda->LastImage(), "ptx 80 fresh");
  EXPECT(launched.size() == 1);
  const char* const too_old = " on sm_90 with a driver for CUDA 12.4, which may be too old";
  EXPECT_TEXT(session.Run("newer", &run.context),
              (std::string("1 ortkit.fused::newer: cuModuleLoadDataEx failed with CUDA_ERROR_FAKE (222)") + too_old).c_str());
  EXPECT_TEXT(session.Run("old", &run.context),
              (std::string("1 ortkit.fused::old: cuModuleLoadDataEx failed with CUDA_ERROR_FAKE (200)") + too_old).c_str());
  EXPECT(NothingIsLeft());
}

// Lets the first call of a name fail in a run of "sum", whose kernel is made for it; returns what is said.
std::string RunWithout(const char* call, const Session& session) {
  for (int count = 0; count < 200; ++count) {
    Devices({{90, 227 << 10}});
    Case run(5, 5);
    cuda->FailAt(count, 2);
    const std::string problem = session.Run("sum", &run.context);
    const bool is_it = cuda->Failed() != nullptr && !strcmp(cuda->Failed(), call);
    cuda->FailAt(-1, 0);
    if (is_it) return problem;
  }
  return "it is never called";
}

void MemoryThatIsNotThereIsToldAndTheSessionGoesOn() {
  const Session session;
  for (const auto& [call, detail] : {std::pair{"cuModuleLoadDataEx", " on sm_90 with a driver for CUDA 12.4"},
                                     std::pair{"cuLaunchKernel", ""}}) {
    EXPECT_TEXT(RunWithout(call, session),
                ("1 ortkit.fused::sum: " + std::string(call) + " failed with CUDA_ERROR_OUT_OF_MEMORY (2)" + detail).c_str());
    EXPECT(NothingIsLeft());
    Case run(5, 5);
    EXPECT_TEXT(session.Run("sum", &run.context), "");
    EXPECT(run.context.outputs[0]->as<float>()[24] == 49.0f);
  }
}

void EachDeviceGetsItsBestImage() {
  const struct { int32_t architecture; const char* image; } devices[] = {
      {80, "cubin 80 add"}, {86, "cubin 80 add"}, {89, "cubin 80 add"}, {90, "cubin 90aadd"},
      {100, "ptx 80 add"}, {103, "ptx 80 add"}, {120, "ptx 80 add"},
      // Code with features of 9.0 is not taken by a successor of the same major.
      {91, "ptx 80 add"}};
  for (const auto& device : devices) {
    Devices({{device.architecture, 227 << 10}});
    const Session session;
    Case run(2, 2);
    EXPECT_TEXT(session.Run("add", &run.context), "");
    EXPECT_TEXT(cuda->LastImage(), device.image);
  }
}

void ModulesAreLoadedOnceForEachContext() {
  Devices({{90, 227 << 10}, {90, 227 << 10}});
  const Session session, other;
  std::vector<std::pair<const Session*, void*>> kernels;
  for (int i = 0; i < 12; ++i) {
    const Session* owner = i % 3 == 0 ? &other : &session;
    kernels.push_back({owner, nullptr});
    EXPECT_TEXT(owner->Make("add", &kernels.back().second, i % 2), "");
  }
  EXPECT(cuda->Count().loads == 2 && cuda->Count().modules == 2 && cuda->Count().contexts == 12);
  for (int i = 0; i < 12; ++i) {
    // Threads come with another device's context, or none.
    if (i % 4 != 3) cuda->MakeCurrent(i % 4 == 0 ? 1 - i % 2 : i % 2);
    const int before = cuda->Current();
    Case run(3, 5);
    EXPECT_TEXT(fake::Take(session.Find("add")->KernelComputeV2(kernels[i].second, &run.context)), "");
    EXPECT(run.context.outputs[0]->as<float>()[14] == 18.0f);
    EXPECT(cuda->Current() == before);
    session.Find("add")->KernelDestroy(kernels[i].second);
    EXPECT(cuda->Current() == before);
  }
  EXPECT(cuda->Count().modules == 0 && cuda->Count().contexts == 0);
  EXPECT(cuda->Count().depth == 9);
  Devices({{90, 227 << 10}});
}

// A run loads nothing, so that it can be captured into a graph.
void ARunLoadsNothing() {
  const Session session;
  for (const char* op : {"add", "sum", "pick"}) {
    void* kernel = nullptr;
    EXPECT_TEXT(session.Make(op, &kernel), "");
    const int loads = cuda->Count().loads;
    for (int i = 0; i < 3; ++i) {
      Case run(3, 16 + i);
      EXPECT_TEXT(fake::Take(session.Find(op)->KernelComputeV2(kernel, &run.context)), "");
    }
    EXPECT(cuda->Count().loads == loads);
    session.Find(op)->KernelDestroy(kernel);
  }
}

// Each call into the driver fails in turn: it comes back with its name, or nothing depends on it.
void EachFailureOfTheDriverComesBack() {
  int failures = 0;
  for (int call = 0; call < 200; ++call) {
    Devices({{90, 227 << 10}});
    const Session session;
    cuda->FailAt(call, 2);
    Case run(5, 5);
    const std::string problem = session.Run("sum", &run.context);
    const char* failed = cuda->Failed();
    cuda->FailAt(-1, 0);
    const bool is_after = failed != nullptr && (!strcmp(failed, "cuModuleUnload") || !strcmp(failed, "cuDevicePrimaryCtxRelease"));
    if (failed == nullptr || problem.empty()) {
      EXPECT_TEXT(problem, "");
    } else {
      ++failures;
      std::string text = "1 ortkit.fused::sum: " + std::string(failed) + " failed with CUDA_ERROR_OUT_OF_MEMORY (2)";
      if (!strcmp(failed, "cuCtxGetCurrent")) text = "1 ortkit.fused::sum: cuCtxPushCurrent failed with CUDA_ERROR_OUT_OF_MEMORY (2)";
      EXPECT_TEXT(problem.substr(0, text.size()), text.c_str());
    }
    EXPECT(fake::LiveStatuses() == 0 && fake::LiveAllocators() == 0 && fake::LiveScratch() == 0);
    EXPECT(cuda->Count().depth == 0 && cuda->Count().mistakes == 0);
    // What cannot be unloaded or released stays with the driver.
    if (!is_after && (failed == nullptr || !problem.empty())) EXPECT(NothingIsLeft());
    if (failed == nullptr) break;
  }
  EXPECT(failures >= 15);
}

void EachFailureOfTheRuntimeComesBack() {
  const auto sweep = [](auto&& act) {
    for (int call = 0; call < 200; ++call) {
      fake::FailAt(call);
      const std::string text = act();
      const bool has_failed = fake::HasFailed();
      EXPECT_TEXT(text, has_failed && !fake::HasFailedToFree() ? "1 injected" : "");
      fake::FailAt(-1);
      EXPECT(NothingIsLeft());
      if (!has_failed) return;
    }
    EXPECT(!"it never succeeded");
  };
  const Session session;
  sweep([&] {
    Case run(5, 5);
    return session.Run("sum", &run.context);
  });
  sweep([] {
    ort::SessionOptions options;
    return fake::Take(RegisterCustomOps(&options, fake::Base()));
  });
  sweep([] {
    ort::SessionOptions options;
    options.config["ortkit.fused.target"] = "cuda";
    return fake::Take(RegisterCustomOps(&options, fake::Base()));
  });
}

// A launch fails, and then what there is to clean up does too: the first failure comes back.
void FailuresAfterAFailureAreReleased() {
  int launch = 0;
  for (bool is_found = false; !is_found; launch += is_found ? 0 : 1) {
    const Session session;
    Case run(5, 5);
    cuda->FailAt(launch, 2);
    session.Run("sum", &run.context);
    is_found = cuda->Failed() == nullptr || !strcmp(cuda->Failed(), "cuLaunchKernel");
  }
  bool is_both = false;
  for (int call = 0; call < 100; ++call) {
    Devices({{90, 227 << 10}});
    const Session session;
    Case run(5, 5);
    cuda->FailAt(launch, 2);
    fake::FailAt(call);
    const std::string problem = session.Run("sum", &run.context);
    const bool has_failed = fake::HasFailed();
    fake::FailAt(-1);
    const bool is_launch = problem.find("cuLaunchKernel failed") != std::string::npos;
    is_both = is_both || (has_failed && is_launch);
    EXPECT(fake::LiveStatuses() == 0 && fake::LiveAllocators() == 0 && fake::LiveScratch() == 0);
    if (is_launch) EXPECT(NothingIsLeft());  // else the driver fails at the end, and keeps what it has
    if (!has_failed) break;
  }
  cuda->FailAt(-1, 0);
  EXPECT(is_both);
}

// An error that the driver has no name for.
void AnUnknownErrorIsTold() {
  const Session session;
  void* kernel = nullptr;
  cuda->FailAt(0, 999);
  EXPECT_TEXT(session.Make("add", &kernel), "1 ortkit.fused::add: cuDeviceGet failed with an unknown error (999)");
}

// At the process's end the driver may go before the sessions do.
void KernelsOutliveTheDriver() {
  const Session session;
  void* kernel = nullptr;
  EXPECT_TEXT(session.Make("sum", &kernel), "");
  cuda->End();
  Case run(5, 5);
  EXPECT_TEXT(fake::Take(session.Find("sum")->KernelComputeV2(kernel, &run.context)),
              "1 ortkit.fused::sum: cuCtxPushCurrent failed with CUDA_ERROR_FAKE (4)");
  session.Find("sum")->KernelDestroy(kernel);
  EXPECT(fake::LiveAllocators() == 0 && fake::LiveScratch() == 0);
}

void ThreadsMakeAndRunKernels() {
  Devices({{90, 227 << 10}, {80, 163 << 10}});
  cuda->Define("add", AddBody);
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([number] {
      for (int round = 0; round < 20; ++round) {
        const Session session;
        Case run(number + 1, 5);
        EXPECT_TEXT(session.Run("add", &run.context, number % 2), "");
        EXPECT(run.context.outputs[0]->as<float>()[3] == 6.0f);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  cuda->Define("add", NotedAdd);
}

// ---- without a driver, or without a device
void WithoutADriverThereAreTheKernelsForTheCpu() {
  EXPECT_TEXT(Session(nullptr).Ops(), kAllForCpu);
  EXPECT_TEXT(Session("cpu").Ops(), kAllForCpu);
  EXPECT_TEXT(Session("cuda").Ops(), "");
}

void ADriverThatGoesIsTold() {
  const OrtkitOp& spec = kOps[0];
  const ortkit::Op op = {ortkit_cuda.DescribeToRuntime(spec), &spec, fake::Table(), true};
  const ort::KernelInfo info = {2, 1};
  void* kernel = nullptr;
  EXPECT_TEXT(fake::Take(op.abi.CreateKernelV2(&op.abi, fake::Table(), &info, &kernel)),
              "1 ortkit.fused::add: there is no CUDA driver with a device (libcuda.so.1)");
}

struct Test {
  const char* name;
  void (*run)();
};
const Test with_driver[] = {
    {"a session gets the kernels of its target", ASessionGetsTheKernelsOfItsTarget},
    {"what no device runs is left out", WhatNoDeviceRunsIsLeftOut},
    {"ops are described for CUDA", OpsAreDescribedForCuda},
    {"blocks follow the sizes", BlocksFollowTheSizes},
    {"steps run in order with scratch between", StepsRunInOrderWithScratchBetween},
    {"tensors are mapped from the sizes of a run", TensorsAreMappedFromTheSizesOfARun},
    {"of nothing there is no map", OfNothingThereIsNoMap},
    {"products are cuBLAS where it is", ProductsAreCublasWhereItIs},
    {"scratch is kept for its stream", ScratchIsKeptForItsStream},
    {"runs at a time have scratch of their own", RunsAtATimeHaveScratchOfTheirOwn},
    {"kernels share scratch", KernelsShareScratch},
    {"nothing to compute launches nothing", NothingToComputeLaunchesNothing},
    {"the first variant that holds is launched", TheFirstVariantThatHoldsIsLaunched},
    {"what does not fit is refused", WhatDoesNotFitIsRefused},
    {"each device gets its best image", EachDeviceGetsItsBestImage},
    {"in a graph a launch begins while ours before it ends", InAGraphALaunchBeginsWhileOursBeforeItEnds},
    {"an old driver gets PTX", AnOldDriverGetsPtx},
    {"memory that is not there is told and the session goes on", MemoryThatIsNotThereIsToldAndTheSessionGoesOn},
    {"modules are loaded once for each context", ModulesAreLoadedOnceForEachContext},
    {"a run loads nothing", ARunLoadsNothing},
    {"each failure of the driver comes back", EachFailureOfTheDriverComesBack},
    {"each failure of the runtime comes back", EachFailureOfTheRuntimeComesBack},
    {"failures after a failure are released", FailuresAfterAFailureAreReleased},
    {"an unknown error is told", AnUnknownErrorIsTold},
    {"kernels outlive the driver", KernelsOutliveTheDriver},
    {"threads make and run kernels", ThreadsMakeAndRunKernels},
};
const Test without_driver[] = {
    {"without a driver there are the kernels for the CPU", WithoutADriverThereAreTheKernelsForTheCpu},
    {"a driver that goes is told", ADriverThatGoesIsTold},
};

// What an NVTX tool sees of it: test_cuda_nvtx.py.
void RunTwo() {
  Devices({{90, 227 << 10}});
  const Session session;
  for (const char* op : {"add", "sum"}) {
    Case run(5, 5);
    EXPECT_TEXT(session.Run(op, &run.context), "");
  }
}

void Run(const Test& test) {
  const int before = mistakes;
  if (cuda != nullptr) Devices({{90, 227 << 10}});
  test.run();
  EXPECT(fake::LiveStatuses() == 0);
  printf("%s %s\n", test.name, mistakes == before ? "ok" : "FAILED");
}

}  // namespace

#if defined(__x86_64__)
constexpr OrtkitCpu kHere = ORTKIT_CPU_X86_64;
#else
constexpr OrtkitCpu kHere = ORTKIT_CPU_AARCH64;
#endif
const OrtkitManifest ortkit_manifest = {ORTKIT_MANIFEST_VERSION, kHere, "ortkit.fused", kOpCount, kOps, storage, &ortkit_cuda};

int main(int count, char** arguments) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto* control = driver == nullptr ? nullptr : static_cast<const fake_cuda::Control*>(dlsym(driver, "fake_cuda_control"));
  const std::string mode = count > 1 ? arguments[1] : "driver";
  if (mode == "driver" || mode == "ranges") {
    if (control == nullptr) return 2;
    cuda = control;
    has_maps = dlsym(driver, "cuTensorMapEncodeTiled") != nullptr;
    is_early_known = dlsym(driver, "cuLaunchKernelEx") != nullptr && dlsym(driver, "cuStreamGetCaptureInfo_v3") != nullptr;
    cuda->Define("add", NotedAdd);
    cuda->Define("part", PartBody);
    cuda->Define("join", JoinBody);
    for (const char* entry : {"fast", "wide", "slow", "fresh"}) cuda->Define(entry, PickBody);
    if (mode == "ranges") {
      RunTwo();
    } else {
      for (const Test& test : with_driver) Run(test);
    }
  } else {
    // No driver, one without devices, one that does not start, or one that lacks a function.
    if ((mode == "nothing") != (driver == nullptr)) return 2;
    if (mode == "incomplete" || mode == "ended") control->SetDevices(&kH100, 1);
    if (mode == "ended") control->End();
    for (const Test& test : without_driver) Run(test);
  }
  fake::ReleaseDomains();
  return mistakes == 0 ? 0 : 1;
}
