// Whether a model that was compiled ahead of time fits this machine and this ONNX Runtime.
//
// The text: "ortkit;manifest=4;cpu=x86-64-v3;runtime=1.31". Kernels run where the processor has their
// level and this library reads their manifest; they were made for a graph as one ONNX Runtime rewrote it,
// and better ones can be made where the processor has more.
#include <cstring>

#include "../shim.h"
#include "ep.h"

namespace ortkit::provider {
namespace {

enum Verdict : int32_t { kNotApplicable = 0, kOptimal = 1, kRecompile = 2, kUnsupported = 3 };

constexpr int32_t kHighestLevel = 64;  // of OrtkitCpu, ever

// "1.31" of "1.31.1".
std::string MinorOf(const std::string& version) {
  const size_t dot = version.find('.');
  return version.substr(0, dot == std::string::npos ? dot : version.find('.', dot + 1));
}

bool IsLevel(int32_t level) {
  return strcmp(CpuName(static_cast<OrtkitCpu>(level)), "unknown") != 0;
}

// The level of a name, or 0.
int32_t LevelNamed(const std::string& name) {
  for (int32_t level = 1; level < kHighestLevel; ++level) {
    if (IsLevel(level) && name == CpuName(static_cast<OrtkitCpu>(level))) return level;
  }
  return 0;
}

// Whether this machine runs a level above `level`.
bool HasBetter(int32_t level) {
  for (int32_t better = level + 1; better < kHighestLevel; ++better) {
    if (IsLevel(better) && MissingCpu(static_cast<OrtkitCpu>(better)) == nullptr) return true;
  }
  return false;
}

// The fields of a text, none if it is not of ortkit.
Pairs ReadFields(const std::string& text) {
  Pairs fields;
  if (text.rfind("ortkit;", 0) != 0) return fields;
  for (size_t at = 7; at < text.size();) {
    size_t end = text.find(';', at);
    if (end == std::string::npos) end = text.size();
    const std::string field = text.substr(at, end - at);
    const size_t equals = field.find('=');
    if (equals != std::string::npos) fields.Add(field.substr(0, equals), field.substr(equals + 1));
    at = end + 1;
  }
  return fields;
}

Verdict Judge(const std::string& text, const std::string& runtime, std::string* reason) {
  const Pairs fields = ReadFields(text);
  const std::string* cpu = fields.Find("cpu");
  const std::string* made_for = fields.Find("runtime");
  if (cpu == nullptr || made_for == nullptr) {
    *reason = "it was not compiled by ortkit";
    return kNotApplicable;
  }
  const std::string manifest = Format("%d", ORTKIT_MANIFEST_VERSION);
  if (!fields.Is("manifest", manifest.c_str())) {
    *reason = "its kernels were made by another version of ortkit";
    return kUnsupported;
  }
  const int32_t level = LevelNamed(*cpu);
  const char* have = level == 0 ? "of another kind" : MissingCpu(static_cast<OrtkitCpu>(level));
  if (have != nullptr && *cpu != "any") {
    *reason = "its kernels need a processor of level " + *cpu + ", and this one is " + have;
    return kUnsupported;
  }
  if (*made_for != MinorOf(runtime)) {
    *reason = "it was compiled with ONNX Runtime " + *made_for + ", and this is " + runtime;
    return kRecompile;
  }
  if (level != 0 && HasBetter(level)) {
    *reason = "this processor has more than " + *cpu;
    return kRecompile;
  }
  return kOptimal;
}

std::string OwnText(const Ep& ep) {
  const char* cpu = ep.cpu_level == 0 ? "any" : CpuName(static_cast<OrtkitCpu>(ep.cpu_level));
  return Format("ortkit;manifest=%d;cpu=%s;runtime=%s", ORTKIT_MANIFEST_VERSION, cpu,
                MinorOf(ep.runtime().text).c_str());
}

}  // namespace

const char* GetCompatibility(ort::Ep* abi, const ort::Graph* graph) {
  Ep* ep = AsEp(abi);
  const OrtkitProvider& calls = ep->definition->calls;
  ep->compatibility = OwnText(*ep);
  if (calls.compatibility == nullptr) return ep->compatibility.c_str();
  const PythonCall python(ep->definition->is_python());
  if (!python) return ep->compatibility.c_str();
  const OrtkitGraph view = {ep->api(), graph, 0, 1};
  OrtkitError answer;
  if (calls.compatibility(calls.user, ep->user, &view, &answer) == 0) ep->compatibility = answer.text;
  return ep->compatibility.c_str();
}

ort::Status* ValidateCompatibility(ort::EpFactory* abi, const ort::HardwareDevice* const*, size_t,
                                   const char* info, int32_t* verdict) {
  const Factory& factory = *AsFactory(abi);
  const OrtkitProvider& calls = factory.definition->calls;
  std::string reason;
  *verdict = Judge(info, factory.runtime.text, &reason);
  if (calls.validate == nullptr) return nullptr;
  const PythonCall python(factory.definition->is_python());
  if (!python) return Fail(factory.runtime.api, ort::kFail, factory.definition->name + ": " + kClosed);
  OrtkitError error;
  const int32_t code = calls.validate(calls.user, info, verdict, &error);
  return FromCallback(factory.runtime.api, factory.definition->name, "validate", code, error);
}

}  // namespace ortkit::provider

extern "C" int32_t ortkit_provider_validate(const char* compatibility, const char* runtime,
                                            int32_t* verdict, OrtkitError* reason) {
  std::string why;
  *verdict = ortkit::provider::Judge(compatibility, runtime, &why);
  ortkit_provider_error(reason, why.c_str());
  return 0;
}
