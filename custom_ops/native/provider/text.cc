#include "text.h"

#include <cstdarg>
#include <cstdio>

namespace ortkit::provider {

std::string Format(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

std::string TakeMessage(const ort::Api* api, ort::Status* status) {
  if (status == nullptr) return "";
  std::string text = ort::GetErrorMessage(api)(status);
  ort::ReleaseStatus(api)(status);
  return text;
}

ort::Status* Fail(const ort::Api* api, int32_t code, const std::string& message) {
  return ort::CreateStatus(api)(code, message.c_str());
}

ort::Status* FromCallback(const ort::Api* api, const std::string& provider, const char* callback,
                          int32_t code, const OrtkitError& error) {
  if (code == 0) return nullptr;
  const std::string reason = error.text.empty() ? Format("%s returned %d", callback, code) : error.text;
  // Codes that ONNX Runtime does not know would be shown as numbers without a name.
  const bool is_known = code > 0 && code <= 13;
  return Fail(api, is_known ? code : ort::kFail, provider + ": " + reason);
}

}  // namespace ortkit::provider

extern "C" {

OrtkitError* ortkit_provider_new_error(void) { return new OrtkitError; }
void ortkit_provider_free_error(OrtkitError* error) { delete error; }
void ortkit_provider_error(OrtkitError* error, const char* message) {
  if (error != nullptr) error->text = message == nullptr ? "" : message;
}
const char* ortkit_provider_error_text(const OrtkitError* error) {
  return error == nullptr ? "" : error->text.c_str();
}

}  // extern "C"
