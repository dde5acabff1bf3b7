#include "definition.h"

#include <time.h>

#include <map>
#include <mutex>

#include "text.h"

#ifndef ORTKIT_VERSION
#define ORTKIT_VERSION "0.0.0"
#endif

namespace ortkit::provider {
namespace {

std::string Text(const char* text) { return text == nullptr ? "" : text; }

std::vector<int32_t> Copy(const int32_t* values, int32_t count) {
  return std::vector<int32_t>(values, values + (values == nullptr ? 0 : count));
}

// Never destroyed: sessions may outlive the destructors of this library.
struct Table {
  std::mutex mutex;
  std::map<std::string, const Definition*> definitions;  // null: undefined
  std::vector<const Definition*> kept;                   // all that ever were
};

Table& TheTable() {
  static Table& table = *new Table;
  return table;
}

std::atomic<bool> is_closed{false};
std::atomic<int32_t> running{0};

// Runs what was compiled ahead of time, and nothing else.
const Definition* BuiltIn() {
  static const Definition& definition = *[] {
    auto* made = new Definition;
    made->name = kOwnProvider;
    made->vendor = "ortkit";
    made->version_text = ORTKIT_VERSION;
    made->devices.emplace_back();
    made->calls.flags = ORTKIT_PROVIDER_READS_CONTEXTS;
    return made;
  }();
  return &definition;
}

const char* WhatIsMissing(const OrtkitMemory& memory) {
  if (memory.name == nullptr) return "a name";
  if (memory.allocate == nullptr || memory.free == nullptr) return "allocate and free";
  if (memory.copy == nullptr) return "copy";
  if (memory.alignment == 0 || (memory.alignment & (memory.alignment - 1)) != 0) {
    return "an alignment that is a power of two";
  }
  if (memory.has_streams == 0) return nullptr;
  if (memory.create_stream == nullptr || memory.release_stream == nullptr) return "streams";
  const bool has_notifications = memory.create_notification != nullptr &&
                                 memory.release_notification != nullptr &&
                                 memory.activate != nullptr && memory.wait_on_device != nullptr &&
                                 memory.wait_on_host != nullptr;
  return has_notifications ? nullptr : "notifications";
}

// Why a definition cannot be used, or nothing.
std::string WhatIsWrong(const OrtkitProvider& provider) {
  if (provider.version != ORTKIT_BRIDGE_VERSION) {
    return Format("the definition has version %u, and the library %u", provider.version,
                  unsigned{ORTKIT_BRIDGE_VERSION});
  }
  if (Text(provider.name).empty()) return "the provider has no name";
  if (provider.get_capability == nullptr && provider.kernel_count == 0) {
    return "the provider has neither get_capability nor kernels";
  }
  // Seen with ONNX Runtime 1.31.1: its Python package asks a session for its inputs while it holds the
  // interpreter's lock, and waits there for the run, whose kernel waits for the lock.
  constexpr uint32_t kDeadlock = ORTKIT_PROVIDER_SERIAL_RUNS | ORTKIT_PROVIDER_PYTHON;
  if ((provider.flags & kDeadlock) == kDeadlock) {
    return "a provider in Python cannot have ONNX Runtime keep runs apart; take a lock of your own";
  }
  for (int32_t i = 0; i < provider.kernel_count; ++i) {
    const OrtkitKernelEntry& kernel = provider.kernels[i];
    const std::string op = Text(kernel.op_type);
    if (op.empty()) return Format("kernel %d names no op", i);
    if (kernel.create == nullptr) return Format("the kernel for %s has no create", op.c_str());
    if (kernel.first_version < 1 || kernel.last_version < kernel.first_version) {
      return Format("the kernel for %s is for versions %d to %d", op.c_str(), kernel.first_version,
                    kernel.last_version);
    }
  }
  for (int32_t i = 0; i < provider.device_count; ++i) {
    const OrtkitMemory* memory = provider.devices[i].memory;
    if (memory == nullptr) continue;
    if (const char* missing = WhatIsMissing(*memory)) {
      return Format("the memory of device %d lacks %s", i, missing);
    }
    // ONNX Runtime tells devices of a kind by it, and 0 is any.
    if (provider.vendor_id == 0) return "a provider with memory of its own needs a vendor id";
  }
  return "";
}

DeviceDefinition CopyDevice(const OrtkitDevice& device) {
  DeviceDefinition copy;
  copy.hardware_type = device.hardware_type;
  copy.vendor_id = device.vendor_id;
  copy.metadata = Pairs(device.metadata);
  if (device.memory == nullptr) return copy;
  copy.has_memory = true;
  copy.memory = *device.memory;
  copy.memory_name = Text(device.memory->name);
  copy.memory.name = nullptr;
  copy.counters = new Counters;  // stays, like the definition
  return copy;
}

KernelDefinition CopyKernel(const OrtkitKernelEntry& entry) {
  KernelDefinition copy;
  copy.domain = Text(entry.domain);
  copy.op_type = Text(entry.op_type);
  for (int32_t i = 0; i < entry.constraint_count; ++i) {
    const OrtkitTypeConstraint& constraint = entry.constraints[i];
    copy.constraints.emplace_back(Text(constraint.name),
                                  Copy(constraint.element_types, constraint.count));
  }
  copy.cpu_inputs = Copy(entry.cpu_inputs, entry.cpu_input_count);
  copy.cpu_outputs = Copy(entry.cpu_outputs, entry.cpu_output_count);
  copy.entry = entry;
  return copy;
}

const Definition* CopyDefinition(const OrtkitProvider& provider) {
  auto* copy = new Definition;
  copy->name = Text(provider.name);
  copy->vendor = Text(provider.vendor);
  copy->version_text = Text(provider.version_text);
  for (int32_t i = 0; i < provider.device_count; ++i) {
    copy->devices.push_back(CopyDevice(provider.devices[i]));
  }
  if (copy->devices.empty()) copy->devices.emplace_back();
  for (int32_t i = 0; i < provider.kernel_count; ++i) {
    copy->kernels.push_back(CopyKernel(provider.kernels[i]));
  }
  copy->calls = provider;
  return copy;
}

}  // namespace

Pairs::Pairs(const OrtkitEntries& entries) {
  for (int64_t i = 0; i < entries.count; ++i) Add(Text(entries.keys[i]), Text(entries.values[i]));
}

void Pairs::Add(std::string key, std::string value) {
  pairs_.emplace_back(std::move(key), std::move(value));
}

const std::string* Pairs::Find(const std::string& key) const {
  for (const auto& pair : pairs_) {
    if (pair.first == key) return &pair.second;
  }
  return nullptr;
}

bool Pairs::Is(const std::string& key, const char* value) const {
  const std::string* found = Find(key);
  return found != nullptr && *found == value;
}

Entries::Entries(const Pairs& pairs) {
  for (size_t i = 0; i < pairs.size(); ++i) {
    keys_.push_back(pairs[i].first.c_str());
    values_.push_back(pairs[i].second.c_str());
  }
}

OrtkitEntries Entries::get() const {
  return {static_cast<int64_t>(keys_.size()), keys_.data(), values_.data()};
}

bool Definition::has_memory() const {
  for (const DeviceDefinition& device : devices) {
    if (device.has_memory) return true;
  }
  return false;
}

bool Definition::has_streams() const {
  for (const DeviceDefinition& device : devices) {
    if (device.has_memory && device.memory.has_streams != 0) return true;
  }
  return false;
}

const Definition* FindDefinition(const std::string& registration) {
  Table& table = TheTable();
  const std::lock_guard<std::mutex> lock(table.mutex);
  const auto found = table.definitions.find(registration);
  return found == table.definitions.end() ? BuiltIn() : found->second;
}

PythonCall::PythonCall(bool is_python) : is_counted_(is_python), is_open_(true) {
  if (!is_python) return;
  running.fetch_add(1);
  is_open_ = !is_closed.load();
}

PythonCall::~PythonCall() {
  if (is_counted_) running.fetch_sub(1);
}

}  // namespace ortkit::provider

extern "C" {

uint32_t ortkit_provider_version(void) { return ORTKIT_BRIDGE_VERSION; }

int32_t ortkit_provider_define(const char* registration, const OrtkitProvider* provider,
                               OrtkitError* error) {
  using namespace ortkit::provider;
  const std::string wrong = WhatIsWrong(*provider);
  if (!wrong.empty()) {
    ortkit_provider_error(error, wrong.c_str());
    return ort::kInvalidArgument;
  }
  const Definition* definition = CopyDefinition(*provider);
  Table& table = TheTable();
  const std::lock_guard<std::mutex> lock(table.mutex);
  table.definitions[registration] = definition;
  table.kept.push_back(definition);
  return 0;
}

void ortkit_provider_undefine(const char* registration) {
  using namespace ortkit::provider;
  Table& table = TheTable();
  const std::lock_guard<std::mutex> lock(table.mutex);
  table.definitions[registration] = nullptr;
}

int32_t ortkit_provider_close(int32_t milliseconds) {
  using namespace ortkit::provider;
  is_closed.store(true);
  const timespec pause = {0, 1000000};
  for (int32_t i = 0; i < milliseconds && running.load() > 0; ++i) nanosleep(&pause, nullptr);
  return running.load();
}

int32_t ortkit_provider_memory_statistics(const char* registration, int32_t device,
                                          int64_t* counters, int32_t room) {
  using namespace ortkit::provider;
  const Definition* definition = FindDefinition(registration);
  if (definition == nullptr || device < 0 ||
      static_cast<size_t>(device) >= definition->devices.size()) {
    return 0;
  }
  const Counters* found = definition->devices[device].counters;
  if (found == nullptr) return 0;
  const int64_t values[] = {found->in_use, found->max_in_use, found->allocations,
                            found->total,  found->largest,    found->frees};
  int32_t written = 0;
  for (const int64_t value : values) {
    if (written < room) counters[written++] = value;
  }
  return written;
}

}  // extern "C"
