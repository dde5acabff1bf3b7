#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>

#include "../shim.h"
#include "sha256.h"
#include "text.h"

namespace ortkit::provider {
namespace {

struct Loaded {
  std::mutex mutex;
  std::map<std::string, OrtkitLibrary*> libraries;  // by id
};

Loaded& TheLoaded() {
  static Loaded& loaded = *new Loaded;
  return loaded;
}

// By number: glibc 2.17 has no names for these.
constexpr unsigned kCloseOnExec = 1, kAllowSealing = 2;
constexpr int kAddSeals = 1033, kSealSeal = 1, kSealShrink = 2, kSealGrow = 4, kSealWrite = 8;

int MakeMemoryFile() {
#ifdef SYS_memfd_create
  return static_cast<int>(syscall(SYS_memfd_create, "ortkit-kernels", kCloseOnExec | kAllowSealing));
#else
  return -1;
#endif
}

// A path that no library was loaded from yet. dlopen tells libraries by their paths, not all go when they
// are closed, and descriptors are used again: so the bits of a counter stand in it, as "/." and "/".
std::string PathOf(int file) {
  static std::atomic<uint64_t> count{0};
  std::string path = "/proc/self";
  for (uint64_t bits = ++count; bits != 0; bits >>= 1) path += (bits & 1) != 0 ? "/." : "/";
  return path + Format("/fd/%d", file);
}

bool IsSharedLibrary(const Content& content) {
  return content.size() > 64 && memcmp(content.data(), "\177ELF", 4) == 0;
}

const OrtkitManifest* ReadManifest(void* handle) {
  using Manifest = const OrtkitManifest*();
  auto* manifest = reinterpret_cast<Manifest*>(dlsym(handle, "ortkit_kernel_manifest"));
  return manifest == nullptr ? nullptr : manifest();
}

// Why a library cannot be used, or nothing.
std::string WhatIsWrong(const OrtkitManifest* manifest) {
  if (manifest == nullptr) return "it is no kernel library of ortkit, or an old one; build it again";
  if (manifest->version != ORTKIT_MANIFEST_VERSION) {
    return Format("it has version %u of ortkit's manifest, and this is %u; build it again",
                  manifest->version, unsigned{ORTKIT_MANIFEST_VERSION});
  }
  if (const char* have = MissingCpu(manifest->cpu)) {
    return Format("its kernels need a processor of level %s, and this one is %s; build them for it",
                  CpuName(manifest->cpu), have);
  }
  return "";
}

}  // namespace

Content::~Content() {
  if (data_ != nullptr) munmap(data_, size_);
  if (file_ >= 0) close(file_);
  if (is_named_) unlink(path_.c_str());
}

bool Content::Make(size_t size, std::string* reason) {
  file_ = MakeMemoryFile();
  if (file_ >= 0) {
    path_ = PathOf(file_);
  } else {
    const char* folder = getenv("TMPDIR");
    path_ = std::string(folder == nullptr || *folder == '\0' ? "/tmp" : folder) + "/ortkit-XXXXXX";
    file_ = mkostemp(path_.data(), O_CLOEXEC);
    is_named_ = file_ >= 0;
  }
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(size)) != 0) {
    *reason = Format("no memory file of %zu bytes: %s", size, strerror(errno));
    return false;
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (data == MAP_FAILED) {
    *reason = Format("no memory file of %zu bytes: %s", size, strerror(errno));
    return false;
  }
  data_ = data;
  size_ = size;
  return true;
}

bool Content::ReadFile(const std::string& path, std::string* reason) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
    *reason = Format("%s: %s", path.c_str(), file < 0 ? strerror(errno) : "no file with content");
    if (file >= 0) close(file);
    return false;
  }
  bool is_read = Make(static_cast<size_t>(status.st_size), reason);
  for (size_t done = 0; is_read && done < size_;) {
    const ssize_t count = read(file, static_cast<char*>(data_) + done, size_ - done);
    if (count <= 0) {
      *reason = Format("%s: %s", path.c_str(), count < 0 ? strerror(errno) : "it is shorter than it was");
      is_read = false;
      break;
    }
    done += static_cast<size_t>(count);
  }
  close(file);
  return is_read;
}

bool Content::Seal(std::string* reason) {
  if (is_sealed_) return true;
  munmap(data_, size_);
  data_ = nullptr;
  // A file with a name is in a folder of temporaries, and only this user may open it.
  const bool is_closed =
      is_named_ || fcntl(file_, kAddSeals, kSealSeal | kSealShrink | kSealGrow | kSealWrite) == 0;
  void* data = is_closed ? mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_, 0) : MAP_FAILED;
  if (data == MAP_FAILED) {
    *reason = Format("the copy of the library cannot be sealed: %s", strerror(errno));
    return false;
  }
  data_ = data;
  is_sealed_ = true;
  return true;
}

OrtkitLibrary* Load(Content* content, std::string* reason) {
  if (!content->Seal(reason)) return nullptr;
  if (!IsSharedLibrary(*content)) {
    *reason = "it is no shared library";
    return nullptr;
  }
  const std::string id = Sha256(content->data(), content->size());
  Loaded& loaded = TheLoaded();
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  const auto found = loaded.libraries.find(id);
  if (found != loaded.libraries.end()) {
    ++found->second->holders;
    return found->second;
  }
  void* handle = dlopen(content->path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    *reason = dlerror();
    return nullptr;
  }
  const OrtkitManifest* manifest = ReadManifest(handle);
  *reason = WhatIsWrong(manifest);
  if (!reason->empty()) {
    dlclose(handle);
    return nullptr;
  }
  auto* library = new OrtkitLibrary{id, content->data_, content->size_, handle, manifest, 1};
  content->data_ = nullptr;  // the library's from now on
  loaded.libraries[id] = library;
  return library;
}

OrtkitLibrary* FindLoaded(const std::string& id) {
  Loaded& loaded = TheLoaded();
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  const auto found = loaded.libraries.find(id);
  if (found == loaded.libraries.end()) return nullptr;
  ++found->second->holders;
  return found->second;
}

void Hold(OrtkitLibrary* library) {
  const std::lock_guard<std::mutex> lock(TheLoaded().mutex);
  ++library->holders;
}

void LetGo(OrtkitLibrary* library) {
  if (library == nullptr) return;
  Loaded& loaded = TheLoaded();
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  if (--library->holders > 0) return;
  loaded.libraries.erase(library->id);
  dlclose(library->handle);
  munmap(const_cast<void*>(library->content), library->size);
  delete library;
}

const OrtkitOp* FindOp(const OrtkitLibrary& library, const std::string& op_type) {
  for (int32_t i = 0; i < library.manifest->op_count; ++i) {
    if (op_type == library.manifest->ops[i].op_type) return &library.manifest->ops[i];
  }
  return nullptr;
}

OrtkitKernelFunction FindFunction(const OrtkitLibrary& library, const std::string& name) {
  if (name == "RegisterCustomOps" || name == "ortkit_kernel_manifest") return nullptr;  // no kernels
  void* function = dlsym(library.handle, name.c_str());
  void* manifest = dlsym(library.handle, "ortkit_kernel_manifest");
  // The name may come from a model, and dlsym also looks into what the library needs.
  Dl_info its_own = {};
  Dl_info found = {};
  const bool is_own = function != nullptr && dladdr(manifest, &its_own) != 0 &&
                      dladdr(function, &found) != 0 && found.dli_fbase == its_own.dli_fbase;
  return is_own ? reinterpret_cast<OrtkitKernelFunction>(function) : nullptr;
}

}  // namespace ortkit::provider

extern "C" {

OrtkitLibrary* ortkit_provider_open_library(const char* path, OrtkitError* error) {
  using namespace ortkit::provider;
  Content content;
  std::string reason;
  OrtkitLibrary* library = content.ReadFile(path, &reason) ? Load(&content, &reason) : nullptr;
  if (library == nullptr) ortkit_provider_error(error, reason.c_str());
  return library;
}

OrtkitLibrary* ortkit_provider_load_library(const void* bytes, size_t size, OrtkitError* error) {
  using namespace ortkit::provider;
  Content content;
  std::string reason = "it is empty";
  OrtkitLibrary* library = nullptr;
  if (size > 0 && content.Make(size, &reason)) {
    memcpy(content.data(), bytes, size);
    library = Load(&content, &reason);
  }
  if (library == nullptr) ortkit_provider_error(error, reason.c_str());
  return library;
}

void ortkit_provider_close_library(OrtkitLibrary* library) { ortkit::provider::LetGo(library); }

const char* ortkit_provider_library_op(const OrtkitLibrary* library, int32_t index) {
  const bool is_present = index >= 0 && index < library->manifest->op_count;
  return is_present ? library->manifest->ops[index].op_type : nullptr;
}

}  // extern "C"
