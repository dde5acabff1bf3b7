// Kernel libraries, loaded from files or from memory, each content once.
#pragma once

#include <string>

#include "../manifest.h"
#include "bridge.h"

// Counted; gone with its last holder.
struct OrtkitLibrary {
  std::string id;  // SHA-256 of its content
  const void* content;
  size_t size;
  void* handle;  // of dlopen
  const OrtkitManifest* manifest;
  int64_t holders;
  bool is_of_model = false;  // a model brought it; else this process was given it or built it
};

namespace ortkit::provider {

// What a library is loaded from: memory to be filled, that becomes a file without a name.
class Content {
 public:
  Content() = default;
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  // Null, and why, without memory.
  bool Make(size_t size, std::string* reason);
  bool ReadFile(const std::string& path, std::string* reason);
  // Nobody can write it any more: what is hashed from now on is what is loaded.
  bool Seal(std::string* reason);
  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  friend OrtkitLibrary* Load(Content*, std::string*);
  int file_ = -1;
  void* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;  // where dlopen finds it
  bool is_named_ = false;
  bool is_sealed_ = false;
};

// The library of this content, held once more; null and why if there can be none. Takes the content over.
OrtkitLibrary* Load(Content* content, std::string* reason);
// One that is loaded already, held once more, or null.
OrtkitLibrary* FindLoaded(const std::string& id);
void Hold(OrtkitLibrary*);
void LetGo(OrtkitLibrary*);

// How the file of a library beside a model ends: 12 digits of its SHA-256 and ".so".
inline std::string LibraryEnding(const std::string& id) { return "." + id.substr(0, 12) + ".so"; }

const OrtkitOp* FindOp(const OrtkitLibrary&, const std::string& op_type);
// A function of this name, for ops that the manifest does not have.
OrtkitKernelFunction FindFunction(const OrtkitLibrary&, const std::string& name);

}  // namespace ortkit::provider
