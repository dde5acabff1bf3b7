// The domain of one session's options, which all kernel libraries registered with them share, and
// which of an op's kernels it gets.
//
// ONNX Runtime takes one domain of a name per session, and a session may have several libraries
// (two optimized models merged into one, or one library named twice). So the first library to come
// creates the domain, for these options only, and notes its address in them; the next ones add
// their ops to it. Nobody tells when the options are gone: a domain, 8 bytes an op and some 60 more,
// is never released.
//
// Nobody tells which providers the session will have either: Python adds them after the libraries, and
// the C API does not show them. An op that is registered must have a kernel for one of them, and its
// node runs where the kernel is, with copies between devices if need be, while the node of an op that is
// not registered becomes its function's body. So there are two sets, for sessions with and without
// CUDA; the entry `ortkit.fused.target` of the options says which, else a machine with a GPU and a
// runtime with the CUDA provider decide for CUDA.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "cuda_ort.h"
#include "shim.h"

namespace ortkit {
namespace {

constexpr char kAddressKey[] = "ortkit.fused.domain";
constexpr char kTargetKey[] = "ortkit.fused.target";

// Digits of strtoull's; that function itself is another symbol in every new C library.
uintptr_t ParseHex(const char* text) {
  uintptr_t value = 0;
  for (; *text != '\0'; ++text) {
    const int digit = *text <= '9' ? *text - '0' : *text - 'a' + 10;
    value = value * 16 + static_cast<uintptr_t>(digit);
  }
  return value;
}

ort::Status* HasEntry(const ort::Api* api, const ort::SessionOptions* options, const char* key,
                      bool* has) {
  int32_t found = 0;
  ORTKIT_RETURN_IF_ERROR(ort::HasSessionConfigEntry(api)(options, key, &found));
  *has = found != 0;
  return nullptr;
}

ort::Status* FindDomain(const ort::Api* api, const ort::SessionOptions* options,
                        ort::OpDomain** domain) {
  bool has = false;
  ORTKIT_RETURN_IF_ERROR(HasEntry(api, options, kAddressKey, &has));
  if (!has) return nullptr;
  char text[32] = {};
  size_t size = sizeof text;
  ORTKIT_RETURN_IF_ERROR(ort::GetSessionConfigEntry(api)(options, kAddressKey, text, &size));
  *domain = reinterpret_cast<ort::OpDomain*>(ParseHex(text));
  return nullptr;
}

ort::Status* HasCudaProvider(const ort::Api* api, bool* has) {
  char** names = nullptr;
  int32_t count = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetAvailableProviders(api)(&names, &count));
  for (int32_t i = 0; i < count; ++i) *has = *has || strcmp(names[i], kCudaProvider) == 0;
  return ort::ReleaseAvailableProviders(api)(names, count);
}

// Beside a kernel for CUDA the one for the CPU is there too, for nodes that ONNX Runtime keeps there.
// A kernel that no device runs is not registered, which `why` says: its node becomes the function's body.
bool IsWanted(const Op& op, bool is_cuda, char* why, size_t capacity) {
  if (!is_cuda) return !op.is_cuda;
  return op.spec->cuda != nullptr && ortkit_manifest.cuda->CanRun(*op.spec->cuda, why, capacity);
}

// "<domain>::<op><suffix>", which a session's options note.
ort::Status* WriteKey(const Op& op, const char* suffix, char (*key)[512]) {  // ONNX Runtime takes 1024
  const int length = snprintf(*key, sizeof *key, "%s::%s%s", ortkit_manifest.domain, op.spec->op_type, suffix);
  if (static_cast<size_t>(length) < sizeof *key) return nullptr;
  return Refuse(op, ort::kInvalidArgument, "the name is too long");
}

ort::Status* NoteLeftOut(const ort::Api* api, ort::SessionOptions* options, const Op& op, const char* why) {
  char key[512];
  ORTKIT_RETURN_IF_ERROR(WriteKey(op, "@left_out", &key));
  char text[256];
  snprintf(text, sizeof text, "%s of kernel %s: the function body runs", why, op.spec->key);
  return ort::AddSessionConfigEntry(api)(options, key, text);
}

// Adds what no library before has brought: equal names are equal kernels.
ort::Status* AddNewOps(const ort::Api* api, ort::SessionOptions* options, ort::OpDomain* domain,
                       const Op* ops, int32_t count, bool is_cuda) {
  for (int32_t i = 0; i < count; ++i) {
    char why[160];
    if (!IsWanted(ops[i], is_cuda, why, sizeof why)) {
      if (is_cuda && ops[i].is_cuda) ORTKIT_RETURN_IF_ERROR(NoteLeftOut(api, options, ops[i], why));
      continue;
    }
    char key[512];
    ORTKIT_RETURN_IF_ERROR(WriteKey(ops[i], ops[i].is_cuda ? "@cuda" : "", &key));
    bool has = false;
    ORTKIT_RETURN_IF_ERROR(HasEntry(api, options, key, &has));
    if (has) continue;
    ORTKIT_RETURN_IF_ERROR(ort::CustomOpDomainAdd(api)(domain, &ops[i].abi));
    ORTKIT_RETURN_IF_ERROR(ort::AddSessionConfigEntry(api)(options, key, "registered"));
  }
  return nullptr;
}

}  // namespace

ort::Status* IsForCuda(const ort::Api* api, const ort::SessionOptions* options, bool* is_cuda) {
  bool is_said = false;
  ORTKIT_RETURN_IF_ERROR(HasEntry(api, options, kTargetKey, &is_said));
  *is_cuda = false;
  if (!is_said) {
    const bool is_possible = ortkit_manifest.cuda != nullptr && ortkit_manifest.cuda->HasDevice();
    return is_possible ? HasCudaProvider(api, is_cuda) : nullptr;
  }
  char target[32] = {};
  size_t size = sizeof target;
  ORTKIT_RETURN_IF_ERROR(ort::GetSessionConfigEntry(api)(options, kTargetKey, target, &size));
  *is_cuda = strcmp(target, "cuda") == 0;
  if (*is_cuda || strcmp(target, "cpu") == 0) return nullptr;
  char text[128];
  snprintf(text, sizeof text, "ortkit.fused: the entry %s is '%s', expected cpu or cuda", kTargetKey, target);
  return ort::CreateStatus(api)(ort::kInvalidArgument, text);
}

ort::Status* AddToSession(const ort::Api* api, ort::SessionOptions* options, const Op* ops,
                          int32_t count) {
  bool is_cuda = false;
  ORTKIT_RETURN_IF_ERROR(IsForCuda(api, options, &is_cuda));
  ort::OpDomain* domain = nullptr;
  ORTKIT_RETURN_IF_ERROR(FindDomain(api, options, &domain));
  if (domain != nullptr) return AddNewOps(api, options, domain, ops, count, is_cuda);
  ORTKIT_RETURN_IF_ERROR(ort::CreateCustomOpDomain(api)(ortkit_manifest.domain, &domain));
  ORTKIT_RETURN_IF_ERROR(AddNewOps(api, options, domain, ops, count, is_cuda));
  ORTKIT_RETURN_IF_ERROR(ort::AddCustomOpDomain(api)(options, domain));
  char text[32];
  snprintf(text, sizeof text, "%" PRIxPTR, reinterpret_cast<uintptr_t>(domain));
  return ort::AddSessionConfigEntry(api)(options, kAddressKey, text);
}

}  // namespace ortkit
