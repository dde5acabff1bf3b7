// A session's provider: made from its options, told of its runs.
#include "ep.h"

#include <cctype>
#include <cstdlib>

#include "profiler.h"

namespace ortkit::provider {
namespace {

const char* GetName(const ort::Ep* abi) { return AsEp(abi)->definition->name.c_str(); }

ort::Status* SetDynamicOptions(ort::Ep* abi, const char* const* keys, const char* const* values,
                               size_t count) {
  const Ep& ep = *AsEp(abi);
  const OrtkitProvider& calls = ep.definition->calls;
  if (calls.set_dynamic_options == nullptr) return nullptr;
  const OrtkitEntries entries = {static_cast<int64_t>(count), keys, values};
  return Call(ep, "set_dynamic_options", [&](OrtkitError* error) {
    return calls.set_dynamic_options(calls.user, ep.user, &entries, error);
  });
}

ort::Status* OnRunStart(ort::Ep* abi, const ort::RunOptions* options) {
  const Ep& ep = *AsEp(abi);
  const OrtkitProvider& calls = ep.definition->calls;
  if (!ep.fatal.empty()) return Fail(ep.api(), ort::kFail, ep.fatal);
  if (calls.run_start == nullptr) return nullptr;
  const OrtkitRun run = {ep.api(), options};
  return Call(ep, "run_start", [&](OrtkitError* error) {
    return calls.run_start(calls.user, ep.user, &run, error);
  });
}

ort::Status* OnRunEnd(ort::Ep* abi, const ort::RunOptions* options, bool is_synchronous) {
  const Ep& ep = *AsEp(abi);
  const OrtkitProvider& calls = ep.definition->calls;
  if (calls.run_end == nullptr) return nullptr;
  const OrtkitRun run = {ep.api(), options};
  return Call(ep, "run_end", [&](OrtkitError* error) {
    return calls.run_end(calls.user, ep.user, &run, is_synchronous, error);
  });
}

ort::Status* OnSessionInitializationEnd(ort::Ep* abi) {
  const Ep& ep = *AsEp(abi);
  const OrtkitProvider& calls = ep.definition->calls;
  if (!ep.fatal.empty()) return Fail(ep.api(), ort::kFail, ep.fatal);
  if (calls.session_initialized == nullptr) return nullptr;
  return Call(ep, "session_initialized", [&](OrtkitError* error) {
    return calls.session_initialized(calls.user, ep.user, error);
  });
}

ort::Status* IsConcurrentRunSupported(ort::Ep* abi, bool* is_supported) {
  *is_supported = (AsEp(abi)->definition->calls.flags & ORTKIT_PROVIDER_SERIAL_RUNS) == 0;
  return nullptr;
}

ort::Status* CreateProfiler(ort::Ep* abi, ort::EpProfilerImpl** out) {
  Ep* ep = AsEp(abi);
  *out = MakeProfiler(ep);
  return nullptr;
}

void FillAbi(Ep* ep) {
  ort::Ep& abi = ep->abi;
  abi.version = ep->runtime().filled();
  abi.GetName = GetName;
  abi.GetCapability = GetCapability;
  abi.Compile = Compile;
  abi.ReleaseNodeComputeInfos = ReleaseNodeComputeInfos;
  abi.SetDynamicOptions = SetDynamicOptions;
  abi.OnRunStart = OnRunStart;
  abi.OnRunEnd = OnRunEnd;
  abi.GetCompiledModelCompatibilityInfo = GetCompatibility;
  const bool has_kernels = !ep->definition->kernels.empty() || ep->definition->has_memory();
  if (has_kernels) abi.GetKernelRegistry = GetKernelRegistry;
  abi.IsConcurrentRunSupported = IsConcurrentRunSupported;
  abi.CreateProfiler = CreateProfiler;
  abi.OnSessionInitializationEnd = OnSessionInitializationEnd;
}

// The options of this provider, as ONNX Runtime names them in a session's configuration.
Pairs OptionsIn(const Pairs& config, const std::string& name) {
  std::string prefix = "ep.";
  for (const char c : name) prefix += static_cast<char>(tolower(static_cast<unsigned char>(c)));
  prefix += '.';
  Pairs options;
  for (size_t i = 0; i < config.size(); ++i) {
    const auto& [key, value] = config[i];
    if (key.compare(0, prefix.size(), prefix) == 0) options.Add(key.substr(prefix.size()), value);
  }
  return options;
}

ort::Status* CreateUser(Ep* ep) {
  const OrtkitProvider& calls = ep->definition->calls;
  if (calls.create_ep == nullptr) return nullptr;
  const Entries options(ep->options);
  const Entries config(ep->config);
  const OrtkitSession session = {ep->api(),
                                 options.get(),
                                 config.get(),
                                 reinterpret_cast<const OrtkitLogger*>(ep->logger),
                                 static_cast<int32_t>(ep->devices.size()),
                                 ep->devices.data()};
  return Call(*ep, "create_ep", [&](OrtkitError* error) {
    return calls.create_ep(calls.user, &session, &ep->user, error);
  });
}

}  // namespace

Pairs ReadPairs(const ort::Api* api, const ort::KeyValuePairs* pairs) {
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  ort::GetPairs(api)(pairs, &keys, &values, &count);
  return Pairs({static_cast<int64_t>(count), keys, values});
}

ort::Status* CreateEp(Factory* factory, const ort::KeyValuePairs* const* metadata, size_t count,
                      const ort::SessionOptions* options, const ort::Logger* logger, ort::Ep** out) {
  const ort::Api* api = factory->runtime.api;
  ort::KeyValuePairs* config = nullptr;
  ORTKIT_RETURN_IF_FAILED(ort::GetSessionConfig(api)(options, &config));
  auto ep = std::make_unique<Ep>();
  ep->factory = factory;
  ep->definition = factory->definition;
  ep->logger = logger;
  ep->config = ReadPairs(api, config);
  ort::ReleasePairs(api)(config);
  ep->options = OptionsIn(ep->config, ep->definition->name);
  for (size_t i = 0; i < count; ++i) {
    const char* index = metadata[i] == nullptr ? nullptr : ort::GetPair(api)(metadata[i], kDeviceKey);
    const int32_t device = index == nullptr ? -1 : atoi(index);
    const bool is_known = device >= 0 && static_cast<size_t>(device) < ep->definition->devices.size();
    if (is_known) ep->devices.push_back(device);
  }
  FillAbi(ep.get());
  ORTKIT_RETURN_IF_FAILED(CreateUser(ep.get()));
  *out = &ep.release()->abi;
  return nullptr;
}

void ReleaseEp(ort::Ep* abi) {
  const std::unique_ptr<Ep> ep(AsEp(abi));
  if (ep->registry != nullptr) ort::ReleaseKernelRegistry(ep->runtime().ep)(ep->registry);
  const OrtkitProvider& calls = ep->definition->calls;
  if (calls.release_ep == nullptr) return;
  const PythonCall python(ep->definition->is_python());
  if (python) calls.release_ep(calls.user, ep->user);
}

}  // namespace ortkit::provider

extern "C" void ortkit_provider_log(const void* api, const OrtkitLogger* logger, int32_t severity,
                                    const char* message) {
  const auto* table = static_cast<const ort::Api*>(api);
  const auto* sink = reinterpret_cast<const ort::Logger*>(logger);
  ort::Status* status = ort::LogMessage(table)(sink, severity, message, "ortkit", 0, "provider");
  if (status != nullptr) ort::ReleaseStatus(table)(status);
}
