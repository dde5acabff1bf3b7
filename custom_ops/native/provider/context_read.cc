#include <cstdlib>

#include "context.h"
#include "graph.h"
#include "sha256.h"
#include "trust.h"

namespace ortkit::provider {
namespace {

// The libraries that the nodes of one Compile name, held until all kernels are made.
class Libraries {
 public:
  ~Libraries() {
    for (OrtkitLibrary* library : held_) LetGo(library);
  }
  void Add(OrtkitLibrary* library) { held_.push_back(library); }
  OrtkitLibrary* Find(const std::string& id) {
    for (OrtkitLibrary* library : held_) {
      if (library->id == id) return library;
    }
    // Nodes of another graph of the model may have brought it.
    OrtkitLibrary* loaded = FindLoaded(id);
    if (loaded != nullptr) Add(loaded);
    return loaded;
  }

 private:
  std::vector<OrtkitLibrary*> held_;
};

// The folder of the model that is read.
std::string FolderOf(const Ep& ep) {
  const std::string* path = ep.config.Find("ep.context_file_path");
  if (!ep.model_folder.empty() || path == nullptr) return ep.model_folder;
  const size_t slash = path->rfind('/');
  return slash == std::string::npos ? "." : path->substr(0, slash + (slash == 0));
}

ort::Status* FillEmbedded(const Ep& ep, const ort::Node* node, Content* content) {
  Reader reader(ep.api());
  const size_t size = reader.Size(node, "ep_cache_context");
  std::string reason;
  if (size == 0) return ep.Refuse(ort::kInvalidArgument, "an EPContext node has no ep_cache_context");
  if (!content->Make(size, &reason)) return ep.Refuse(ort::kFail, reason);
  reader.Read(node, "ep_cache_context", content->data(), size);
  return reader.Take();
}

// Whether a file lies in a folder itself, and is no link to elsewhere.
bool LiesIn(const std::string& folder, const std::string& name) {
  char* real = realpath((folder + "/" + name).c_str(), nullptr);
  char* real_folder = realpath(folder.c_str(), nullptr);
  const std::string path = real == nullptr ? "" : real;
  const std::string prefix = real_folder == nullptr ? "" : real_folder;
  free(real);
  free(real_folder);
  return !prefix.empty() && path.substr(0, path.rfind('/')) == (prefix == "/" ? "" : prefix);
}

ort::Status* FillBeside(const Ep& ep, const ort::Node* node, const std::string& id, Content* content) {
  Reader reader(ep.api());
  const std::string name = reader.Text(node, "ep_cache_context");
  ORTKIT_RETURN_IF_FAILED(reader.Take());
  // The name states the content, so that no other file of the model can be named.
  const std::string ending = LibraryEnding(id);
  const bool has_ending = name.size() > ending.size() &&
                          name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
  if (!has_ending || name.find('/') != std::string::npos || name.find('\0') != std::string::npos) {
    return ep.Refuse(ort::kInvalidArgument, "an EPContext node names the file '" + name +
                                                "'; its kernel library must lie beside the model and end in " +
                                                ending);
  }
  const std::string folder = FolderOf(ep);
  if (folder.empty()) {
    return ep.Refuse(ort::kInvalidArgument, "the model comes from memory and its kernel library " + name +
                                                " lies beside it; set ep.context_file_path");
  }
  std::string reason;
  if (!content->ReadFile(folder + "/" + name, &reason)) return ep.Refuse(ort::kFail, reason);
  if (LiesIn(folder, name)) return nullptr;
  return ep.Refuse(ort::kInvalidArgument, "the kernel library " + name + " is a link out of the model's folder");
}

// Loads the library that a node holds or names, if it is a main one.
ort::Status* LoadMain(const Ep& ep, const ort::Node* node, Libraries* libraries) {
  Reader reader(ep.api());
  const bool is_main = reader.Number(node, "main_context", 1) != 0;
  const bool is_embedded = reader.Number(node, "embed_mode", 1) != 0;
  const std::string id = reader.Text(node, "partition_name");
  ORTKIT_RETURN_IF_FAILED(reader.Take());
  if (!is_main) return nullptr;
  Content content;
  ORTKIT_RETURN_IF_FAILED(is_embedded ? FillEmbedded(ep, node, &content) : FillBeside(ep, node, id, &content));
  std::string reason;
  if (!content.Seal(&reason)) return ep.Refuse(ort::kFail, reason);
  if (Sha256(content.data(), content.size()) != id) {
    return ep.Refuse(ort::kInvalidArgument, "the kernel library of the model is not the one that it was "
                                            "compiled with (its SHA-256 differs)");
  }
  // What this process runs already it may run.
  const bool is_known = libraries->Find(id) != nullptr;
  const std::string refusal = is_known || ep.trusts_libraries() ? "" : TrustRefusal(id);
  if (!refusal.empty()) {
    return ep.Refuse(ort::kInvalidArgument,
                     "the kernel library of the model " + refusal +
                         "; if you trust its native code, `ortkit trust MODEL`, or set the provider option trust to 1");
  }
  OrtkitLibrary* library = Load(&content, &reason);
  if (library == nullptr) return ep.Refuse(ort::kFail, "the kernel library of the model: " + reason);
  library->is_of_model = library->is_of_model || !is_known;
  libraries->Add(library);
  return nullptr;
}

// The numbers of "0,2,1".
std::vector<int32_t> Numbers(const std::string& text) {
  std::vector<int32_t> numbers;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    const long number = strtol(at, &end, 10);
    if (end == at) break;
    numbers.push_back(number < 0 || number > INT32_MAX ? -1 : static_cast<int32_t>(number));
    at = *end == ',' ? end + 1 : end;
  }
  return numbers;
}

// Where the values that a node has at `numbers` stand among those of the node that runs it; -1: nowhere.
std::vector<int32_t> Moved(Reader* reader, const std::vector<int32_t>& numbers,
                           const std::vector<const ort::ValueInfo*>& own,
                           const std::vector<const ort::ValueInfo*>& fused) {
  std::vector<int32_t> moved;
  for (const int32_t number : numbers) {
    const bool is_known = number >= 0 && static_cast<size_t>(number) < own.size();
    int32_t place = is_known ? -1 : number;  // which is refused with the others that do not fit
    const std::string name = is_known ? reader->Name(own[number]) : "";
    for (size_t i = 0; is_known && i < fused.size() && place < 0; ++i) {
      if (reader->Name(fused[i]) == name) place = static_cast<int32_t>(i);
    }
    moved.push_back(place);
  }
  return moved;
}

Pairs ReadNotes(const std::string& notes) {
  Pairs pairs;
  for (size_t at = 0; at < notes.size();) {
    size_t end = notes.find('\n', at);
    if (end == std::string::npos) end = notes.size();
    const std::string line = notes.substr(at, end - at);
    const size_t equals = line.find('=');
    if (equals != std::string::npos) pairs.Add(line.substr(0, equals), line.substr(equals + 1));
    at = end + 1;
  }
  return pairs;
}

ort::Status* MakeKernel(Ep* ep, const ContextNode& context, Libraries* libraries) {
  Reader reader(ep->api());
  const std::string id = reader.Text(context.node, "partition_name");
  const Pairs notes = ReadNotes(reader.Text(context.node, "notes"));
  ORTKIT_RETURN_IF_FAILED(reader.Take());
  OrtkitLibrary* library = libraries->Find(id);
  const std::string* op = notes.Find("op");
  const std::string* input_text = notes.Find("inputs");
  const std::string* output_text = notes.Find("outputs");
  if (library == nullptr || op == nullptr || input_text == nullptr || output_text == nullptr) {
    return ep->Refuse(ort::kInvalidArgument,
                      "the EPContext node " + context.shape.name +
                          (library == nullptr ? " names a kernel library that no node holds"
                                              : " does not say what it runs"));
  }
  const std::vector<int32_t> inputs = Moved(&reader, Numbers(*input_text), reader.Inputs(context.node),
                                            reader.Inputs(context.fused));
  const std::vector<int32_t> outputs = Moved(&reader, Numbers(*output_text), reader.Outputs(context.node),
                                             reader.Outputs(context.fused));
  ORTKIT_RETURN_IF_FAILED(reader.Take());
  Pairs arguments;
  for (size_t i = 0; i < notes.size(); ++i) {
    const auto& [key, value] = notes[i];
    if (key.rfind("argument.", 0) == 0) arguments.Add(key.substr(9), value);
  }
  const Entries entries(arguments);
  const std::string* label = notes.Find("label");
  OrtkitKernel kernel = {};
  kernel.size = sizeof kernel;
  kernel.kind = ORTKIT_KERNEL_LIBRARY_OP;
  kernel.label = label == nullptr ? nullptr : label->c_str();
  kernel.arguments = entries.get();
  kernel.library = library;
  kernel.op_type = op->c_str();
  const int32_t none = 0;
  kernel.input_count = static_cast<int32_t>(inputs.size());
  kernel.inputs = inputs.empty() ? &none : inputs.data();
  kernel.output_count = static_cast<int32_t>(outputs.size());
  kernel.outputs = outputs.empty() ? &none : outputs.data();
  std::string reason;
  *context.made = NodeKernel::Make(ep, kernel, context.shape, &reason);
  if (*context.made != nullptr) return nullptr;
  return ep->Refuse(ort::kInvalidArgument, "the EPContext node " + context.shape.name + ": " + reason);
}

}  // namespace

ort::Status* ReadContexts(Ep* ep, const std::vector<ContextNode>& nodes) {
  Libraries libraries;
  for (const ContextNode& node : nodes) ORTKIT_RETURN_IF_FAILED(LoadMain(*ep, node.node, &libraries));
  for (const ContextNode& node : nodes) ORTKIT_RETURN_IF_FAILED(MakeKernel(ep, node, &libraries));
  return nullptr;
}

}  // namespace ortkit::provider
