// The domain of one session's options, which all kernel libraries registered with them share.
//
// ONNX Runtime takes one domain of a name per session, and a session may have several libraries
// (two optimized models merged into one, or one library named twice). So the first library to come
// creates the domain, for these options only, and notes its address in them; the next ones add
// their ops to it. Nobody tells when the options are gone: a domain, 8 bytes an op and some 60 more,
// is never released.
#include <cinttypes>
#include <cstdio>

#include "shim.h"

namespace ortkit {
namespace {

constexpr char kAddressKey[] = "ortkit.fused.domain";

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

// Adds what no library before has brought: equal names are equal kernels.
ort::Status* AddNewOps(const ort::Api* api, ort::SessionOptions* options, ort::OpDomain* domain,
                       const Op* ops, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    char key[512];  // ONNX Runtime takes 1024
    const int length = snprintf(key, sizeof key, "%s::%s", ortkit_manifest.domain, ops[i].spec->op_type);
    if (static_cast<size_t>(length) >= sizeof key) {
      return Refuse(ops[i], ort::kInvalidArgument, "the name is too long");
    }
    bool has = false;
    ORTKIT_RETURN_IF_ERROR(HasEntry(api, options, key, &has));
    if (has) continue;
    ORTKIT_RETURN_IF_ERROR(ort::CustomOpDomainAdd(api)(domain, &ops[i].abi));
    ORTKIT_RETURN_IF_ERROR(ort::AddSessionConfigEntry(api)(options, key, "registered"));
  }
  return nullptr;
}

}  // namespace

ort::Status* AddToSession(const ort::Api* api, ort::SessionOptions* options, const Op* ops,
                          int32_t count) {
  ort::OpDomain* domain = nullptr;
  ORTKIT_RETURN_IF_ERROR(FindDomain(api, options, &domain));
  if (domain != nullptr) return AddNewOps(api, options, domain, ops, count);
  ORTKIT_RETURN_IF_ERROR(ort::CreateCustomOpDomain(api)(ortkit_manifest.domain, &domain));
  ORTKIT_RETURN_IF_ERROR(AddNewOps(api, options, domain, ops, count));
  ORTKIT_RETURN_IF_ERROR(ort::AddCustomOpDomain(api)(options, domain));
  char text[32];
  snprintf(text, sizeof text, "%" PRIxPTR, reinterpret_cast<uintptr_t>(domain));
  return ort::AddSessionConfigEntry(api)(options, kAddressKey, text);
}

}  // namespace ortkit
