#include "kernel_run.h"

#include "function_run.h"
#include "profiler.h"

// The shim's functions name the domain of the ops that they run; there are none in this library itself.
extern "C" const OrtkitManifest ortkit_manifest = {
    ORTKIT_MANIFEST_VERSION, ORTKIT_CPU_X86_64, "ortkit.fused", 0, nullptr, nullptr, nullptr};

namespace ortkit::provider {
namespace {

// Which of `count` the kernel's are; all of them if it does not say.
bool ReadMap(const int32_t* map, int32_t length, int32_t count, const char* what,
             std::vector<int32_t>* out, std::string* reason) {
  if (map == nullptr) {
    for (int32_t i = 0; i < count; ++i) out->push_back(i);
    return true;
  }
  for (int32_t i = 0; i < length; ++i) {
    if (map[i] < 0 || map[i] >= count) {
      *reason = Format("%s %d of the kernel is the node's %d, and it has %d", what, i, map[i], count);
      return false;
    }
    out->push_back(map[i]);
  }
  return true;
}

bool IsIdentity(const std::vector<int32_t>& map) {
  for (size_t i = 0; i < map.size(); ++i) {
    if (map[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

// Whether each output is made by exactly one of the kernel's.
bool CoversAll(const std::vector<int32_t>& map, size_t count) {
  std::vector<bool> is_made(count);
  for (const int32_t output : map) {
    if (is_made[output]) return false;
    is_made[output] = true;
  }
  return map.size() == count;
}

}  // namespace

std::unique_ptr<NodeKernel> NodeKernel::Make(Ep* ep, const OrtkitKernel& kernel,
                                             const NodeShape& node, std::string* reason) {
  std::unique_ptr<NodeKernel> made(new NodeKernel);
  made->ep_ = ep;
  made->is_python_ = kernel.kind == ORTKIT_KERNEL_PYTHON;
  made->user_ = kernel.user;
  made->release_ = kernel.release;
  made->released_ = kernel.user;
  if (!made->Fill(kernel, node, reason)) made.reset();
  return made;
}

NodeKernel::~NodeKernel() {
  ort::Allocator* scratch = scratch_.load();
  if (scratch != nullptr) ort::ReleaseAllocator(ep_->api())(scratch);
  LetGo(library_);
  if (release_ == nullptr) return;
  const PythonCall python(is_python_);
  if (python) release_(released_);
}

bool NodeKernel::Fill(const OrtkitKernel& kernel, const NodeShape& node, std::string* reason) {
  label_ = kernel.label == nullptr ? node.name : kernel.label;
  arguments_ = Pairs(kernel.arguments);
  has_memory_ = ep_->definition->has_memory();
  has_streams_ = ep_->definition->has_streams();
  if (!FillMaps(kernel, node, reason)) return false;
  if (kernel.kind == ORTKIT_KERNEL_LIBRARY_OP) return FillLibraryOp(kernel, reason);
  if (kernel.kind != ORTKIT_KERNEL_FUNCTION && kernel.kind != ORTKIT_KERNEL_PYTHON) {
    *reason = Format("the kernel is of kind %d", kernel.kind);
    return false;
  }
  function_ = kernel.function;
  if (function_ == nullptr) *reason = "the kernel has no function";
  return function_ != nullptr;
}

bool NodeKernel::FillMaps(const OrtkitKernel& kernel, const NodeShape& node, std::string* reason) {
  const auto output_count = static_cast<int32_t>(node.output_types.size());
  if (!ReadMap(kernel.inputs, kernel.input_count, node.input_count, "input", &inputs_, reason) ||
      !ReadMap(kernel.outputs, kernel.output_count, output_count, "output", &outputs_, reason)) {
    return false;
  }
  if (!CoversAll(outputs_, node.output_types.size())) {
    *reason = Format("the kernel's %zu outputs are not the node's %d, each once", outputs_.size(),
                     output_count);
    return false;
  }
  for (const int32_t output : outputs_) output_types_.push_back(node.output_types[output]);
  is_mapped_ = !IsIdentity(inputs_) || !IsIdentity(outputs_);
  return true;
}

bool NodeKernel::FillLibraryOp(const OrtkitKernel& kernel, std::string* reason) {
  if (kernel.library == nullptr || kernel.op_type == nullptr) {
    *reason = "the kernel names no library, or no op of it";
    return false;
  }
  Hold(kernel.library);
  library_ = kernel.library;
  op_type_ = kernel.op_type;
  if (library_->manifest->cpu > ep_->cpu_level) ep_->cpu_level = library_->manifest->cpu;
  const OrtkitOp* spec = FindOp(*library_, op_type_);
  if (spec == nullptr) {
    function_ = FindFunction(*library_, op_type_);
    if (function_ == nullptr) *reason = "the kernel library has no " + op_type_;
    return function_ != nullptr;
  }
  if (spec->call == nullptr) {
    *reason = "the kernel library has no kernel for the CPU of " + op_type_;
    return false;
  }
  if (inputs_.size() != static_cast<size_t>(spec->input_count) ||
      outputs_.size() != static_cast<size_t>(spec->output_count)) {
    *reason = Format("%s takes %d inputs and %d outputs, and the node gives %zu and %zu",
                     op_type_.c_str(), spec->input_count, spec->output_count, inputs_.size(),
                     outputs_.size());
    return false;
  }
  op_.spec = spec;
  op_.api = ep_->api();
  return true;
}

ort::Status* NodeKernel::Run(ort::KernelContext* context) {
  Profiler* profiler = ep_->profiler.get();
  if (profiler == nullptr || !profiler->is_active()) return RunOnce(context);
  const int64_t begin = Now();
  ort::Status* status = RunOnce(context);
  profiler->Add(label_, begin, Now(), arguments_);
  return status;
}

ort::Status* NodeKernel::RunOnce(ort::KernelContext* context) {
  if (function_ == nullptr) {
    const Places places = is_mapped_ ? Places{inputs_.data(), outputs_.data()} : Places{};
    return ComputeAt(op_, context, places);
  }
  if (!is_python_) return FunctionRun(*this, context).Run();
  const PythonCall python(true);
  if (!python) return ep_->Refuse(ort::kFail, kClosed);
  return FunctionRun(*this, context).Run();
}

// One for the kernel's life: the session's own, for the memory that its tensors lie in.
ort::Allocator* NodeKernel::ScratchAllocator(ort::KernelContext* context) {
  ort::Allocator* known = scratch_.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  ort::Allocator* made = nullptr;
  const ort::Api* api = ep_->api();
  if (ort::Status* status = ort::GetAllocator(api)(context, ep_->memory(), &made)) {
    ort::ReleaseStatus(api)(status);
    return nullptr;
  }
  if (scratch_.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made;
  ort::ReleaseAllocator(api)(made);  // another thread was first
  return known;
}

}  // namespace ortkit::provider
