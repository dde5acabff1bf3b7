// Messages: what callbacks say, and ONNX Runtime's statuses.
#pragma once

#include <string>

#include "bridge.h"
#include "ep_abi.h"

struct OrtkitError {
  std::string text;
};

namespace ortkit::provider {

// printf into a string of any length.
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The message of a status, which is released.
std::string TakeMessage(const ort::Api*, ort::Status*);

ort::Status* Fail(const ort::Api*, int32_t code, const std::string& message);

// A status from what a callback returned: null if that is 0.
ort::Status* FromCallback(const ort::Api*, const std::string& provider, const char* callback,
                          int32_t code, const OrtkitError& error);

#define ORTKIT_RETURN_IF_FAILED(call)                      \
  do {                                                     \
    if (::ort::Status* failed_ = (call)) return failed_;   \
  } while (0)

}  // namespace ortkit::provider
