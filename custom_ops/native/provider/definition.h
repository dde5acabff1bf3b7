// Providers as they were defined: copies, which stay as long as the process.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "bridge.h"

namespace ortkit::provider {

// Keys and values that own their text.
class Pairs {
 public:
  Pairs() = default;
  explicit Pairs(const OrtkitEntries& entries);

  void Add(std::string key, std::string value);
  const std::string* Find(const std::string& key) const;
  bool Is(const std::string& key, const char* value) const;
  size_t size() const { return pairs_.size(); }
  const std::pair<std::string, std::string>& operator[](size_t i) const { return pairs_[i]; }

 private:
  std::vector<std::pair<std::string, std::string>> pairs_;
};

// Pairs as the bridge takes them; `pairs` must not change meanwhile.
class Entries {
 public:
  explicit Entries(const Pairs& pairs);
  OrtkitEntries get() const;

 private:
  std::vector<const char*> keys_;
  std::vector<const char*> values_;
};

// What an allocator counts, of all that there are for one device.
struct Counters {
  std::atomic<int64_t> in_use{0};
  std::atomic<int64_t> max_in_use{0};
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> total{0};
  std::atomic<int64_t> largest{0};
  std::atomic<int64_t> frees{0};
};

struct DeviceDefinition {
  int32_t hardware_type = 0;
  uint32_t vendor_id = 0;
  Pairs metadata;
  bool has_memory = false;
  std::string memory_name;
  OrtkitMemory memory = {};
  Counters* counters = nullptr;
};

struct KernelDefinition {
  std::string domain;
  std::string op_type;
  std::vector<std::pair<std::string, std::vector<int32_t>>> constraints;
  std::vector<int32_t> cpu_inputs;
  std::vector<int32_t> cpu_outputs;
  OrtkitKernelEntry entry = {};  // versions, user and create; its pointers are not to be used
};

struct Definition {
  std::string name;
  std::string vendor;
  std::string version_text;
  std::vector<DeviceDefinition> devices;  // at least one
  std::vector<KernelDefinition> kernels;
  OrtkitProvider calls = {};  // flags, user and functions; its pointers to data are not to be used

  bool reads_contexts() const { return (calls.flags & ORTKIT_PROVIDER_READS_CONTEXTS) != 0; }
  bool is_python() const { return (calls.flags & ORTKIT_PROVIDER_PYTHON) != 0; }
  bool has_memory() const;
  bool has_streams() const;
};

// What this library is under a name: a definition, the built-in one, or null if the name was undefined.
const Definition* FindDefinition(const std::string& registration);

inline constexpr char kOwnProvider[] = "OrtkitExecutionProvider";

// Held while a callback runs. Converts to false once Python is closed, and then it must not be called.
class PythonCall {
 public:
  explicit PythonCall(bool is_python);
  ~PythonCall();
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;
  explicit operator bool() const { return is_open_; }

 private:
  bool is_counted_;
  bool is_open_;
};

inline constexpr char kClosed[] = "the Python interpreter that this provider is written in has ended";

}  // namespace ortkit::provider
