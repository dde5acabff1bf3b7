// The shim against a made-up runtime (fake_runtime.h): run and judged by test_shim.py.
// Prints "<test> ok" for each test, or what was wrong and where.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "constants.h"
#include "expect.h"
#include "fake_runtime.h"
#include "shim.h"

extern "C" ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base);

namespace {

constexpr int32_t kFloat = 1;
constexpr int32_t kDouble = 11;

// ---- four ops and their kernels
// How often each unit was computed, by all threads.
std::vector<std::atomic<int>>* visits = nullptr;
// The units of each call of AddRows, if one thread makes all.
std::vector<int64_t>* calls = nullptr;

// Y[a, b] = X[a, b] + W[b], a unit a row.
int32_t AddRows(char* const* data, const int64_t* sizes, int64_t begin, int64_t end) {
  const auto* x = reinterpret_cast<const float*>(data[0]);
  const auto* w = reinterpret_cast<const float*>(data[1]);
  auto* y = reinterpret_cast<float*>(data[2]);
  if (calls != nullptr) calls->push_back(end - begin);
  for (int64_t row = begin; row < end; ++row) {
    if (visits != nullptr) ++(*visits)[row];
    for (int64_t i = 0; i < sizes[1]; ++i) y[row * sizes[1] + i] = x[row * sizes[1] + i] + w[i];
  }
  return 0;
}

// Y[2*a*b] = -X[2*a*b], a unit an element; W[b] only tells b.
int32_t Negate(char* const* data, const int64_t*, int64_t begin, int64_t end) {
  const auto* x = reinterpret_cast<const float*>(data[0]);
  auto* y = reinterpret_cast<float*>(data[2]);
  for (int64_t i = begin; i < end; ++i) {
    if (visits != nullptr) ++(*visits)[i];
    y[i] = -x[i];
  }
  return 0;
}

// Fails where it computes unit 3.
int32_t Fail(char* const*, const int64_t*, int64_t begin, int64_t end) {
  return begin <= 3 && 3 < end ? 7 : 0;
}

// Unit i finds i % 3 rows, each of i and how many it found before; a row of X that begins with -1 fails.
int32_t Count(char* const* data, const int64_t* sizes, int64_t begin, int64_t end) {
  const auto* x = reinterpret_cast<const float*>(data[0]);
  auto* rows = reinterpret_cast<OrtkitRows*>(data[1]);
  for (int64_t i = begin; i < end; ++i) {
    if (visits != nullptr) ++(*visits)[i];
    if (sizes[1] > 0 && x[i * sizes[1]] == -1.0f) return 5;
    if (i % 3 == 0) continue;
    auto* found = static_cast<float*>(malloc(i % 3 * 2 * sizeof(float)));
    for (int64_t k = 0; k < i % 3; ++k) {
      found[2 * k] = static_cast<float>(i);
      found[2 * k + 1] = static_cast<float>(k);
    }
    rows[i] = {found, i % 3};
  }
  return 0;
}

size_t FirstToFirst(int32_t** inputs, int32_t** outputs) {
  static int32_t zero[] = {0};
  *inputs = *outputs = zero;
  return 1;
}

const int32_t kA[] = {0}, kB[] = {1}, kAB[] = {0, 1}, kFound[] = {2};
const char* const kSymbols[] = {"a", "b", "found"};
const OrtkitExtent kRow[] = {{1, 1, kB}};
const OrtkitExtent kRows[] = {{1, 1, kA}, {1, 1, kB}};
const OrtkitExtent kProduct[] = {{2, 2, kAB}};
const OrtkitExtent kSix[] = {{6, 0, kA}};
const OrtkitTensor kAddTensors[] = {{"X", kFloat, 2, kRows}, {"W", kFloat, 1, kRow}, {"Y", kFloat, 2, kRows}};
const OrtkitTensor kNegateTensors[] = {
    {"X", kFloat, 1, kProduct}, {"W", kFloat, 1, kRow}, {"Y", kFloat, 1, kProduct}};
const OrtkitTensor kFailTensors[] = {{"X", kDouble, 1, kSix}, {"Y", kDouble, 1, kSix}};
const OrtkitExtent kFoundRows[] = {{1, 1, kFound}, {2, 0, kA}};
const OrtkitTensor kCountTensors[] = {{"X", kFloat, 2, kRows}, {"Y", kFloat, 2, kFoundRows}};
// A row costs a slice, or nearly nothing, or what all rows cost together. One streams its constants, one counts its
// results.
const OrtkitOp kOps[] = {
    {"add_rows_0", "0", 2, kSymbols, 2, 1, kAddTensors, 0, nullptr, 1, kRows, {1, 1, kB}, 5000000, 0, 2500000, 0, 0, FirstToFirst, AddRows, nullptr},
    {"negate_1", "1", 2, kSymbols, 2, 1, kNegateTensors, 0, nullptr, 1, kProduct, {1, 0, kA}, 100, 0, 0, 0, 0, nullptr, Negate, nullptr},
    {"fail_2", "2", 0, kSymbols, 1, 1, kFailTensors, 0, nullptr, 1, kSix, {1, 0, kA}, 1000000, 60000, 0, 0, 0, nullptr, Fail, nullptr},
    {"stream_3", "3", 2, kSymbols, 2, 1, kAddTensors, 0, nullptr, 1, kRows, {1, 1, kB}, 1000, 1000, 0, 1, 0, nullptr, AddRows, nullptr},
    {"count_4", "4", 3, kSymbols, 1, 1, kCountTensors, 0, nullptr, 1, kRows, {1, 1, kB}, 5000000, 0, 0, 0, 1, nullptr, Count, nullptr}};
OrtkitStorage storage[ORTKIT_MAX_RUNTIMES * 5];

// ---- a session with them
struct Session {
  explicit Session(int runtime_ = 0) : runtime(runtime_) {
    EXPECT_TEXT(fake::Take(RegisterCustomOps(&options, fake::Base(runtime))), "");
    EXPECT(options.domains.size() == 1);
  }

  const ort::CustomOp* Find(const char* name) const {
    for (const ort::CustomOp* op : options.domains.at(0)->ops) {
      if (!strcmp(op->GetName(op), name)) return op;
    }
    EXPECT(!"no such op");
    return nullptr;
  }

  // Makes a kernel, runs it once, and returns the status's text.
  std::string Run(const char* name, ort::KernelContext* context) const {
    const ort::CustomOp* op = Find(name);
    const ort::KernelInfo info = {context->inputs.size(), context->outputs.size()};
    void* kernel = nullptr;
    if (ort::Status* status = op->CreateKernelV2(op, fake::Table(runtime), &info, &kernel)) return fake::Take(status);
    ort::Status* status = op->KernelComputeV2(kernel, context);
    op->KernelDestroy(kernel);
    return fake::Take(status);
  }

  int runtime;
  ort::SessionOptions options;
};

// A context with inputs of `shapes`, filled with 0, 1, 2 ...
struct Case {
  Case(std::vector<std::vector<int64_t>> shapes, int threads, int32_t type = kFloat) {
    for (const std::vector<int64_t>& shape : shapes) {
      inputs.push_back(std::make_unique<ort::Value>(type, shape, fake::ElementBytes(type)));
      for (size_t i = 0; type == kFloat && i < inputs.back()->count; ++i) inputs.back()->as<float>()[i] = float(i);
      context.inputs.push_back(inputs.back().get());
    }
    context.output_types = {type};
    context.outputs = {nullptr};
    context.threads = threads;
  }

  std::vector<std::unique_ptr<ort::Value>> inputs;
  ort::KernelContext context;
};

bool EachOnce(std::vector<std::atomic<int>>& counts) {
  bool is_once = true;
  for (std::atomic<int>& count : counts) is_once = is_once && count.exchange(0) == 1;
  return is_once;
}

// ---- tests
void EachUnitIsComputedOnce() {
  const Session session;
  for (int64_t a : {1, 2, 3, 8, 33, 257}) {
    for (int64_t b : {1, 4, 100}) {
      std::vector<std::atomic<int>> counts(a);
      visits = &counts;
      for (int threads : {1, 2, 5}) {
        Case one({{a, b}, {b}}, threads);
        EXPECT_TEXT(session.Run("add_rows_0", &one.context), "");
        EXPECT(EachOnce(counts));
        // A point costs 5 us, a slice takes 16, and 4 times the 2.5 us that it costs per point.
        const int64_t least = std::max<int64_t>(16, 4 * b * 5 / 2);
        EXPECT(one.context.parallel_calls == (a * b * 5 > least && a > 1 ? 1 : 0));
        const ort::Value& y = *one.context.outputs[0];
        EXPECT((y.dims == std::vector<int64_t>{a, b}));
        bool is_right = true;
        for (int64_t i = 0; i < a * b; ++i) {
          is_right = is_right && const_cast<ort::Value&>(y).as<float>()[i] == float(i) + float(i % b);
        }
        EXPECT(is_right);
      }
      visits = nullptr;
    }
  }
}

void ThreadsClaimLessAndLess() {
  const Session session;
  std::vector<int64_t> found;
  calls = &found;
  constexpr int64_t kUnits = 30000;
  Case one({{kUnits, 4}, {4}}, 1);
  EXPECT_TEXT(session.Run("add_rows_0", &one.context), "");
  calls = nullptr;
  int64_t left = kUnits;
  const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
  // A unit costs 20 us, a slice 10 more: 8 times that is 4 units, and the quotient is rounded up.
  const int64_t least = 4;
  for (const int64_t units : found) {
    const int64_t wanted = std::max(least, left / (5 * cores) * 4);
    EXPECT(units == std::min(wanted, left));
    left -= units;
  }
  EXPECT(left == 0 && found.size() > 8);
}

void UnitsOfOneElementAreCutWhereVectorsBegin() {
  const Session session;
  for (int64_t a : {1, 7, 1000, 200000}) {
    std::vector<std::atomic<int>> counts(2 * a * 3);
    visits = &counts;
    Case one({{2 * a * 3}, {3}}, 3);
    EXPECT_TEXT(session.Run("negate_1", &one.context), "");
    EXPECT(EachOnce(counts));
    EXPECT(one.context.parallel_calls == (a > 30000 ? 1 : 0));
    visits = nullptr;
  }
}

void NothingToComputeCallsNothing() {
  const Session session;
  for (std::vector<int64_t> shape : {std::vector<int64_t>{0, 3}, {0, 0}, {3, 0}}) {
    std::vector<std::atomic<int>> counts(3);
    visits = &counts;
    Case one({shape, {shape[1]}}, 2);
    EXPECT_TEXT(session.Run("add_rows_0", &one.context), "");
    EXPECT(one.context.outputs[0]->dims == shape);
    EXPECT(counts[0] == 0);
    visits = nullptr;
  }
}

void WhatDoesNotFitIsRefused() {
  const Session session;
  const auto refused = [&](const char* op, std::vector<std::vector<int64_t>> shapes, int32_t type, const char* reason) {
    Case one(std::move(shapes), 1, type);
    EXPECT_TEXT(session.Run(op, &one.context), ("2 ortkit.fused::" + std::string(op) + ": " + reason).c_str());
    EXPECT(one.context.outputs[0] == nullptr);
  };
  refused("add_rows_0", {{2, 3}, {4}}, kFloat, "input 'W' has size 4 in dim 0, and 'b' is 3 elsewhere");
  refused("add_rows_0", {{2, 3, 1}, {3}}, kFloat, "input 'X' has rank 3, expected 2");
  refused("add_rows_0", {{2, 3}, {3}}, kDouble, "input 'X' has element type 11, expected 1");
  refused("add_rows_0", {{2, 3}}, kFloat, "the node has 1 inputs and 1 outputs, expected 2 and 1");
  refused("negate_1", {{7}, {3}}, kFloat, "input 'X' has size 7 in dim 0, and '2*a*b' is 6 elsewhere");
  refused("negate_1", {{6}, {0}}, kFloat, "input 'X' has size 6 in dim 0, and '2*a*b' is 0 elsewhere");
  refused("fail_2", {{5}}, kDouble, "input 'X' has size 5 in dim 0, expected 6");
  Case absent({{2, 3}, {3}}, 1);
  absent.context.inputs[1] = nullptr;
  EXPECT_TEXT(session.Run("add_rows_0", &absent.context), "2 ortkit.fused::add_rows_0: input 'W' is missing");
  Case huge({{int64_t{1} << 40, 0}, {0}}, 1);
  EXPECT_TEXT(session.Run("add_rows_0", &huge.context), "");
}

void AKernelThatFailsIsToldByItsCode() {
  const Session session;
  for (int threads : {1, 3}) {
    Case one({{6}}, threads, kDouble);
    EXPECT_TEXT(session.Run("fail_2", &one.context), "1 ortkit.fused::fail_2: the kernel returned 7");
    EXPECT(one.context.parallel_calls == 1);  // for what its units cost together
  }
}

// Each call into the runtime fails in turn; its status comes back and no other is left.
void EachFailureOfTheRuntimeComesBack() {
  const auto sweep = [](auto&& act) {
    for (int call = 0; call < 200; ++call) {
      fake::FailAt(call);
      const std::string text = act();
      const bool has_failed = fake::HasFailed();
      fake::FailAt(-1);
      EXPECT_TEXT(text, has_failed ? "1 injected" : "");
      EXPECT(fake::LiveStatuses() == 0);
      if (!has_failed) return;
    }
    EXPECT(!"it never succeeded");
  };
  const Session session;
  sweep([&] {
    Case one({{40, 4}, {4}}, 2);
    return session.Run("add_rows_0", &one.context);
  });
  sweep([&] {
    const ort::CustomOp* op = session.Find("negate_1");
    ort::ShapeContext context = {{{kFloat, {-1}, {"n"}}, {kFloat, {-1}, {""}}}, {{}}};
    return fake::Take(op->InferOutputShape(op, &context));
  });
  sweep([] {
    ort::SessionOptions options;
    return fake::Take(RegisterCustomOps(&options, fake::Base()));
  });
}

std::vector<std::string> Infer(const Session& session, const char* name, std::vector<ort::TensorInfo> inputs) {
  const ort::CustomOp* op = session.Find(name);
  ort::ShapeContext context = {std::move(inputs), {{}}};
  EXPECT_TEXT(fake::Take(op->InferOutputShape(op, &context)), "");
  std::vector<std::string> dims;
  const ort::TensorInfo& output = context.outputs[0];
  EXPECT(output.type == kFloat);
  for (size_t i = 0; i < output.dims.size(); ++i) {
    EXPECT((output.dims[i] >= 0) == output.names[i].empty());
    dims.push_back(output.dims[i] >= 0 ? std::to_string(output.dims[i]) : output.names[i]);
  }
  return dims;
}

void SizesAreKnownOrNamedBeforeARun() {
  using Dims = std::vector<std::string>;
  const Session session;
  EXPECT((Infer(session, "add_rows_0", {{kFloat, {-1, 4}, {"n", ""}}, {kFloat, {4}, {""}}}) == Dims{"n", "4"}));
  EXPECT((Infer(session, "add_rows_0", {{kFloat, {-1, -1}, {"n", ""}}, {kFloat, {4}, {""}}}) == Dims{"n", "4"}));
  EXPECT((Infer(session, "negate_1", {{kFloat, {-1}, {"all"}}, {kFloat, {-1}, {"t"}}}) == Dims{"all"}));
  EXPECT((Infer(session, "negate_1", {{kFloat, {12}, {""}}, {kFloat, {3}, {""}}}) == Dims{"12"}));
  const Dims first = Infer(session, "add_rows_0", {{kFloat, {-1, 4}, {"", ""}}, {kFloat, {4}, {""}}});
  const Dims second = Infer(session, "add_rows_0", {{kFloat, {-1, 4}, {"", ""}}, {kFloat, {4}, {""}}});
  EXPECT(first[0] != second[0] && !first[0].empty());
  // A shape that is not known tells nothing; one that is wrong is refused in a run.
  EXPECT(Infer(session, "add_rows_0", {{kFloat, {}, {}}, {kFloat, {4}, {""}}}).size() == 2);
}

void LibrariesOfOneSessionShareItsDomain() {
  Session session;
  EXPECT_TEXT(fake::Take(RegisterCustomOps(&session.options, fake::Base())), "");
  EXPECT(session.options.domains.size() == 1);
  EXPECT(session.options.domains[0]->ops.size() == 5);
  const Session other;
  EXPECT(session.options.domains[0] != other.options.domains[0]);
  EXPECT(session.options.domains[0]->ops == other.options.domains[0]->ops);
}

void EachRuntimeHasItsOwnOps() {
  std::set<const ort::CustomOp*> ops;
  for (int runtime = 0; runtime < ORTKIT_MAX_RUNTIMES; ++runtime) {
    const Session session(runtime);
    ops.insert(session.Find("add_rows_0"));
    Case one({{2, 3}, {3}}, 1);
    EXPECT_TEXT(session.Run("add_rows_0", &one.context), "");
  }
  EXPECT(ops.size() == ORTKIT_MAX_RUNTIMES);
  ort::SessionOptions options;
  EXPECT_TEXT(fake::Take(RegisterCustomOps(&options, fake::Base(ORTKIT_MAX_RUNTIMES))),
              "1 ortkit.fused: too many ONNX Runtimes in one process");
  EXPECT_TEXT(fake::Take(RegisterCustomOps(&options, fake::OldBase())),
              "1 ortkit.fused: this kernel library needs ONNX Runtime 1.24 or newer, and this is 1.23.2");
  EXPECT(options.domains.empty());
}

// Sessions are made and run in many threads at once, of two runtimes.
void ThreadsMakeAndRunSessions() {
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([number] {
      for (int round = 0; round < 5; ++round) {
        const Session session(number % 2);
        Case one({{64, 5}, {5}}, 2);
        EXPECT_TEXT(session.Run("add_rows_0", &one.context), "");
        EXPECT(one.context.outputs[0]->as<float>()[6] == 7.0f);
        EXPECT(Infer(session, "add_rows_0", {{kFloat, {-1, 4}, {"", ""}}, {kFloat, {4}, {""}}}).size() == 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One session's kernel is run by several threads at once, on inputs of different sizes.
void OneKernelIsRunByManyThreads() {
  const Session session;
  const ort::CustomOp* op = session.Find("add_rows_0");
  const ort::KernelInfo info = {2, 1};
  void* kernel = nullptr;
  EXPECT_TEXT(fake::Take(op->CreateKernelV2(op, fake::Table(), &info, &kernel)), "");
  std::vector<std::thread> threads;
  for (int64_t number = 1; number < 7; ++number) {
    threads.emplace_back([=] {
      for (int round = 0; round < 10; ++round) {
        Case one({{number * 10, 3}, {3}}, 2);
        EXPECT_TEXT(fake::Take(op->KernelComputeV2(kernel, &one.context)), "");
        EXPECT(one.context.outputs[0]->count == size_t(number) * 30);
        EXPECT(one.context.outputs[0]->as<float>()[4] == 5.0f);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  op->KernelDestroy(kernel);
}

void MemoryIsSharedAsTheManifestSays() {
  const Session session;
  const ort::CustomOp* add = session.Find("add_rows_0");
  int32_t *inputs = nullptr, *outputs = nullptr;
  EXPECT(add->GetMayInplace(&inputs, &outputs) == 1 && inputs[0] == 0 && outputs[0] == 0);
  add->ReleaseMayInplace(inputs, outputs);
  EXPECT(session.Find("negate_1")->GetMayInplace == nullptr);
  EXPECT(add->GetAliasMap == nullptr);
  Case one({{50, 4}, {4}}, 3);
  one.context.outputs[0] = one.context.inputs[0];
  EXPECT_TEXT(session.Run("add_rows_0", &one.context), "");
  EXPECT(one.inputs[0]->as<float>()[7] == 10.0f);
}

// ---- constants that kernels read from memory in each run
constexpr int64_t kWeights = 1 << 20;

bool HasHugePages() {
  FILE* file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
  if (file == nullptr) return false;
  char text[64] = {};
  const bool is_read = fgets(text, sizeof text, file) != nullptr;
  fclose(file);
  return is_read && strstr(text, "[never]") == nullptr;
}

// A file of weights that is mapped as ONNX Runtime does it.
struct Mapped {
  Mapped() : file(tmpfile()) {
    Fill(1.0f);
    memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    EXPECT(memory != MAP_FAILED);
  }
  ~Mapped() {
    munmap(memory, kBytes);
    fclose(file);
  }

  void Fill(float number) const {
    const std::vector<float> numbers(kWeights, number);
    EXPECT(pwrite(fileno(file), numbers.data(), kBytes, 0) == static_cast<ssize_t>(kBytes));
  }

  // Pages that this process has.
  size_t PagesHere() const {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<uint64_t> entries(kBytes / page);
    FILE* pages = fopen("/proc/self/pagemap", "rb");
    fseek(pages, static_cast<long>(reinterpret_cast<uintptr_t>(memory) / page * sizeof(uint64_t)), SEEK_SET);
    EXPECT(fread(entries.data(), sizeof(uint64_t), entries.size(), pages) == entries.size());
    fclose(pages);
    size_t count = 0;
    for (uint64_t entry : entries) count += entry >> 63;
    return count;
  }

  static constexpr size_t kBytes = kWeights * sizeof(float);
  FILE* file;
  void* memory;
};

// A kernel of constant weights.
struct Streamed {
  explicit Streamed(void* memory) : weights(kFloat, {kWeights}, memory), op(session.Find("stream_3")) {
    const ort::KernelInfo info = {2, 1, 0, {}, {}, {{1, &weights}}};
    EXPECT_TEXT(fake::Take(op->CreateKernelV2(op, fake::Table(), &info, &kernel)), "");
  }
  ~Streamed() { op->KernelDestroy(kernel); }

  float LastOfRun() {
    Case one({{1, kWeights}}, 1);
    one.context.inputs.push_back(&weights);
    one.inputs[0]->as<float>()[kWeights - 1] = 0.0f;
    EXPECT_TEXT(fake::Take(op->KernelComputeV2(kernel, &one.context)), "");
    return one.context.outputs[0]->as<float>()[kWeights - 1];
  }

  Session session;
  ort::Value weights;
  const ort::CustomOp* op;
  void* kernel = nullptr;
};

void WeightsOfFilesAreCopiedToHugePages() {
  const Mapped mapped;
  Streamed first(mapped.memory);
  {
    Streamed second(mapped.memory);
    EXPECT(second.LastOfRun() == 1.0f);
  }
  if (!HasHugePages()) return;
  EXPECT(mapped.PagesHere() == 0);
  mapped.Fill(2.0f);  // the pages of the file are read no more
  EXPECT(first.LastOfRun() == 1.0f);
  EXPECT(mapped.PagesHere() == 0);
  const ortkit::Copy* one = ortkit::HoldCopy(mapped.memory, Mapped::kBytes);
  const ortkit::Copy* same = ortkit::HoldCopy(mapped.memory, Mapped::kBytes);
  EXPECT(one != nullptr && one == same);
  // Another file lies there while the first one's kernel is still held.
  EXPECT(one != nullptr && *reinterpret_cast<const float*>(ortkit::MemoryOf(one)) == 2.0f);
  EXPECT(first.LastOfRun() == 1.0f);
  EXPECT(mapped.PagesHere() == 0);
  for (const ortkit::Copy* copy : {one, same}) {
    if (copy != nullptr) ortkit::ReleaseCopy(copy);
  }
}

void MemoryOfNoFileIsReadWhereItIs() {
  std::vector<float> memory(kWeights, 1.0f);
  Streamed heap(memory.data());
  memory.back() = 2.0f;
  EXPECT(heap.LastOfRun() == 2.0f);
  const Mapped mapped;
  auto* numbers = static_cast<float*>(mapped.memory);
  numbers[0] = 3.0f;  // a page that is this process's own now, and must not be given back
  Streamed changed(mapped.memory);
  EXPECT(numbers[0] == 3.0f);
  numbers[kWeights - 1] = 4.0f;
  Streamed changed_last(numbers);
  EXPECT(changed_last.LastOfRun() == 4.0f && numbers[0] == 3.0f && numbers[kWeights - 1] == 4.0f);
}

void RowsThatUnitsFindAreTheResult() {
  for (const int threads : {1, 3}) {
    for (const int64_t units : {0, 1, 2, 7, 40}) {
      std::vector<std::atomic<int>> seen(units);
      visits = &seen;
      Case one({{units, 4}}, threads);
      EXPECT_TEXT(Session().Run("count_4", &one.context), "");
      visits = nullptr;
      for (const std::atomic<int>& count : seen) EXPECT(count == 1);
      std::vector<float> want;
      for (int64_t i = 0; i < units; ++i) {
        for (int64_t k = 0; k < i % 3; ++k) want.insert(want.end(), {float(i), float(k)});
      }
      ort::Value& got = *one.context.outputs[0];
      EXPECT((got.dims == std::vector<int64_t>{int64_t(want.size()) / 2, 2}));
      EXPECT(!memcmp(got.as<float>(), want.data(), want.size() * sizeof(float)));
    }
  }
  Case failing({{5, 4}}, 1);
  failing.inputs[0]->as<float>()[16] = -1.0f;
  EXPECT_TEXT(Session().Run("count_4", &failing.context),
              "2 ortkit.fused::count_4: values and sizes of its inputs do not fit each other (5)");
}

void OpsAreDescribedAsTheManifestSays() {
  const Session session;
  const ort::CustomOp* op = session.Find("fail_2");
  EXPECT(op->version == 24);
  EXPECT(op->GetInputTypeCount(op) == 1 && op->GetOutputTypeCount(op) == 1);
  EXPECT(op->GetInputType(op, 0) == kDouble && op->GetOutputType(op, 0) == kDouble);
  EXPECT(op->GetExecutionProviderType(op) == nullptr);
  EXPECT(op->GetInputCharacteristic(op, 0) == 0 && op->GetOutputCharacteristic(op, 0) == 0);
  EXPECT(op->GetInputMemoryType(op, 0) == 0);
  EXPECT(op->GetStartVersion(op) == 1 && op->GetEndVersion(op) == INT32_MAX);
  EXPECT(session.options.domains[0]->name == "ortkit.fused");
}

// CPUID words of processors that were sold, and of what a system or a hypervisor makes of them.
void LevelsOfProcessors() {
  struct {
    const char* name;
    ortkit::CpuWords words;
    OrtkitCpu level;
  } const machines[] = {
      {"none of it", {}, ORTKIT_CPU_X86_64},
      {"Nehalem", {0x0098E3BD, 0x1, 0, 0}, ORTKIT_CPU_X86_64_V2},
      {"Sandy Bridge", {0x1FBAE3BF, 0x1, 0, 0x7}, ORTKIT_CPU_X86_64_V2},
      {"Haswell", {0x7FFAFBFF, 0x21, 0x27AB, 0x7}, ORTKIT_CPU_X86_64_V3},
      {"Haswell whose system saves no AVX state", {0x7FFAFBFF, 0x21, 0x27AB, 0x3}, ORTKIT_CPU_X86_64_V2},
      {"Haswell whose hypervisor hides AVX2", {0x7FFAFBFF, 0x21, 0x278B, 0x7}, ORTKIT_CPU_X86_64_V2},
      {"Zen 2", {0x7ED8320B, 0x75C237FF, 0x219C91A9, 0x207}, ORTKIT_CPU_X86_64_V3},
      {"Skylake server", {0x7FFEFBFF, 0x121, 0xD39FFFFB, 0xE7}, ORTKIT_CPU_X86_64_V4},
      {"Skylake server whose system saves no AVX-512 state", {0x7FFEFBFF, 0x121, 0xD39FFFFB, 0x7}, ORTKIT_CPU_X86_64_V3},
      {"Zen 4", {0x7EF8320B, 0x75C237FF, 0xF1BF97A9, 0xE7, 0x00405FCE, 0x10000010, 0x20}, ORTKIT_CPU_X86_64_V4_BF16},
      {"Zen 4 whose hypervisor hides AVX512-BF16", {0x7EF8320B, 0x75C237FF, 0xF1BF97A9, 0xE7, 0x00405FCE, 0x10000010, 0}, ORTKIT_CPU_X86_64_V4_VNNI},
      {"Sapphire Rapids", {0xFFFA3203, 0x121, 0xF1BF2FFB, 0x600E7, 0x1A415F46, 0x23C14010, 0x1C30}, ORTKIT_CPU_X86_64_V4_AMX},
      {"Sapphire Rapids whose system saves no tiles", {0xFFFA3203, 0x121, 0xF1BF2FFB, 0xE7, 0x1A415F46, 0x23C14010, 0x1C30}, ORTKIT_CPU_X86_64_V4_BF16},
      {"Skylake server without AVX512VL", {0x7FFEFBFF, 0x121, 0x539FFFFB, 0xE7}, ORTKIT_CPU_X86_64_V3},
  };
  for (const auto& machine : machines) EXPECT_TEXT(ortkit::CpuName(ortkit::LevelOf(machine.words)), ortkit::CpuName(machine.level));
  EXPECT(ortkit::MissingCpu(ortkit_manifest.cpu) == nullptr);
  const auto higher = static_cast<OrtkitCpu>(ORTKIT_CPU_X86_64_V4_AMX + 1);
  EXPECT(ortkit::MissingCpu(higher) != nullptr);
  EXPECT_TEXT(ortkit::CpuName(higher), "unknown");
}

struct {
  const char* name;
  void (*run)();
} const tests[] = {
    {"each unit is computed once", EachUnitIsComputedOnce},
    {"threads claim less and less", ThreadsClaimLessAndLess},
    {"units of one element are cut where vectors begin", UnitsOfOneElementAreCutWhereVectorsBegin},
    {"nothing to compute calls nothing", NothingToComputeCallsNothing},
    {"what does not fit is refused", WhatDoesNotFitIsRefused},
    {"a kernel that fails is told by its code", AKernelThatFailsIsToldByItsCode},
    {"each failure of the runtime comes back", EachFailureOfTheRuntimeComesBack},
    {"sizes are known or named before a run", SizesAreKnownOrNamedBeforeARun},
    {"libraries of one session share its domain", LibrariesOfOneSessionShareItsDomain},
    {"threads make and run sessions", ThreadsMakeAndRunSessions},
    {"each runtime has its own ops", EachRuntimeHasItsOwnOps},
    {"one kernel is run by many threads", OneKernelIsRunByManyThreads},
    {"memory is shared as the manifest says", MemoryIsSharedAsTheManifestSays},
    {"weights of files are copied to huge pages", WeightsOfFilesAreCopiedToHugePages},
    {"memory of no file is read where it is", MemoryOfNoFileIsReadWhereItIs},
    {"rows that units find are the result", RowsThatUnitsFindAreTheResult},
    {"ops are described as the manifest says", OpsAreDescribedAsTheManifestSays},
    {"levels of processors", LevelsOfProcessors},
};

}  // namespace

#if defined(__x86_64__)
constexpr OrtkitCpu kHere = ORTKIT_CPU_X86_64;
#else
constexpr OrtkitCpu kHere = ORTKIT_CPU_AARCH64;
#endif
const OrtkitManifest ortkit_manifest = {ORTKIT_MANIFEST_VERSION, kHere, "ortkit.fused", 5, kOps, storage, nullptr};

int main() {
  for (const auto& test : tests) {
    const int before = mistakes;
    test.run();
    EXPECT(fake::LiveStatuses() == 0);
    printf("%s %s\n", test.name, mistakes == before ? "ok" : "FAILED");
  }
  fake::ReleaseDomains();
  return mistakes == 0 ? 0 : 1;
}
