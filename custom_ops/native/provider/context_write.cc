#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <climits>
#include <random>

#include "../shim.h"
#include "context.h"
#include "graph.h"
#include "trust.h"

namespace ortkit::provider {
namespace {

// Attributes until a node takes them over.
class Attributes {
 public:
  explicit Attributes(const ort::Api* api) : api_(api) {}
  ~Attributes() {
    for (ort::OpAttr* attribute : made_) ort::ReleaseOpAttr(api_)(attribute);
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  ort::Status* Add(const char* name, int64_t value) {
    return Add(name, &value, 1, ort::kIntAttribute);
  }
  ort::Status* Add(const char* name, const std::string& text) {
    return Add(name, text.data(), text.size(), ort::kStringAttribute);
  }
  ort::Status* Add(const char* name, const void* data, size_t length, ort::AttributeType type) {
    if (length > INT_MAX) {
      return Fail(api_, ort::kInvalidArgument, Format("%s of 2 GiB and more: use embed_mode 0", name));
    }
    ort::OpAttr* attribute = nullptr;
    ORTKIT_RETURN_IF_FAILED(
        ort::CreateOpAttr(api_)(name, data, static_cast<int32_t>(length), type, &attribute));
    made_.push_back(attribute);
    return nullptr;
  }

  std::vector<ort::OpAttr*>& made() { return made_; }

 private:
  const ort::Api* api_;
  std::vector<ort::OpAttr*> made_;
};

std::string Join(const std::vector<int32_t>& numbers) {
  std::string text;
  for (const int32_t number : numbers) text += Format(text.empty() ? "%d" : ",%d", number);
  return text;
}

// What ReadContexts reads back. A label or argument with a line break would be cut there.
std::string NotesOf(const NodeKernel& kernel) {
  std::string notes = "op=" + kernel.op_type() + "\ninputs=" + Join(kernel.inputs()) +
                      "\noutputs=" + Join(kernel.outputs()) + "\n";
  notes += "label=" + kernel.label() + "\n";
  for (size_t i = 0; i < kernel.arguments().size(); ++i) {
    notes += "argument." + kernel.arguments()[i].first + "=" + kernel.arguments()[i].second + "\n";
  }
  return notes;
}

// The path of the model that is written, as far as ONNX Runtime tells.
std::string OutputPath(const Ep& ep) {
  const std::string* path = ep.config.Find("ep.context_file_path");
  return path == nullptr ? "" : *path;
}

// Writes the library beside the model that is written, whole or not at all.
ort::Status* WriteBeside(const Ep& ep, const OrtkitLibrary& library, std::string* name) {
  const std::string model = OutputPath(ep);
  if (model.empty() && ep.model_folder.empty()) {
    return ep.Refuse(ort::kInvalidArgument,
                     "embed_mode 0 needs a place for the kernel library; set ep.context_file_path");
  }
  const size_t slash = model.rfind('/');
  std::string folder = slash == std::string::npos ? "." : model.substr(0, slash + (slash == 0));
  if (model.empty()) folder = ep.model_folder;
  const std::string file = slash == std::string::npos ? model : model.substr(slash + 1);
  const std::string stem = file.empty() ? "model" : file.substr(0, file.rfind(".onnx"));
  *name = stem + LibraryEnding(library.id);
  const std::string path = folder + "/" + *name;
  // Nobody else can know the name, and a file or link of that name is not opened. It is a name of
  // ortkit/temporary.py, whose next sweep removes the file if this process is killed.
  const std::string temporary =
      folder + Format("/.ortkit-draft-%08x%08x.tmp", std::random_device()(), std::random_device()());
  const int target = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (target < 0) return ep.Refuse(ort::kFail, "cannot write " + path + ": " + strerror(errno));
  flock(target, LOCK_EX | LOCK_NB);
  FILE* out = fdopen(target, "wb");
  if (out == nullptr) close(target);
  bool is_written = out != nullptr && fwrite(library.content, 1, library.size, out) == library.size;
  is_written = out != nullptr && fclose(out) == 0 && is_written;
  if (is_written && rename(temporary.c_str(), path.c_str()) == 0) return nullptr;
  const std::string reason = strerror(errno);
  unlink(temporary.c_str());
  return ep.Refuse(ort::kFail, "cannot write " + path + ": " + reason);
}

// The attributes that hold or name the library, the first time it is written.
ort::Status* AddLibrary(Ep* ep, const OrtkitLibrary& library, Attributes* attributes) {
  const bool is_embedded = !ep->config.Is("ep.context_embed_mode", "0");
  bool is_main = true;
  for (const OrtkitLibrary* written : ep->written) is_main = is_main && written != &library;
  ORTKIT_RETURN_IF_FAILED(attributes->Add("main_context", is_main ? 1 : 0));
  ORTKIT_RETURN_IF_FAILED(attributes->Add("embed_mode", is_embedded ? 1 : 0));
  if (!is_main) return nullptr;
  ep->written.push_back(&library);
  if (!library.is_of_model) Trust(library.id, OutputPath(*ep));
  if (is_embedded) {
    return attributes->Add("ep_cache_context", library.content, library.size, ort::kStringAttribute);
  }
  std::string name;
  ORTKIT_RETURN_IF_FAILED(WriteBeside(*ep, library, &name));
  return attributes->Add("ep_cache_context", name);
}

}  // namespace

ort::Status* WriteContext(Ep* ep, const ort::Node* fused, const NodeKernel& kernel, ort::Node** out) {
  const OrtkitLibrary* library = kernel.library();
  if (library == nullptr) {
    return ep->Refuse(ort::kFail, kernel.label() + " is a function of this process, which an EPContext "
                                                   "model cannot hold; only ops of kernel libraries can");
  }
  if (kernel.has_user()) {
    return ep->Refuse(ort::kFail, kernel.label() + " reads memory of this process, which an EPContext "
                                                   "model cannot hold");
  }
  Reader reader(ep->api());
  std::vector<std::string> names;  // of inputs, then outputs
  const std::vector<const ort::ValueInfo*> inputs = reader.Inputs(fused);
  const std::vector<const ort::ValueInfo*> outputs = reader.Outputs(fused);
  for (const ort::ValueInfo* value : inputs) names.push_back(reader.Name(value));
  for (const ort::ValueInfo* value : outputs) names.push_back(reader.Name(value));
  const std::string node_name = reader.Name(fused);
  ORTKIT_RETURN_IF_FAILED(reader.Take());
  std::vector<const char*> texts;
  for (const std::string& name : names) texts.push_back(name.c_str());
  Attributes attributes(ep->api());
  ORTKIT_RETURN_IF_FAILED(AddLibrary(ep, *library, &attributes));
  ORTKIT_RETURN_IF_FAILED(attributes.Add("source", ep->definition->name));
  ORTKIT_RETURN_IF_FAILED(attributes.Add("partition_name", library->id));
  ORTKIT_RETURN_IF_FAILED(attributes.Add("hardware_architecture", CpuName(library->manifest->cpu)));
  ORTKIT_RETURN_IF_FAILED(
      attributes.Add("ep_sdk_version", Format("ortkit-manifest %d", ORTKIT_MANIFEST_VERSION)));
  ORTKIT_RETURN_IF_FAILED(attributes.Add("notes", NotesOf(kernel)));
  ORTKIT_RETURN_IF_FAILED(ort::CreateNode(ep->runtime().editor)(
      "EPContext", "com.microsoft", node_name.c_str(), texts.data(), inputs.size(),
      texts.data() + inputs.size(), outputs.size(), attributes.made().data(), attributes.made().size(),
      out));
  attributes.made().clear();
  return nullptr;
}

}  // namespace ortkit::provider
