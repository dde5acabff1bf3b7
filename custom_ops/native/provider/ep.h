// How a provider's callbacks are called.
#pragma once

#include "factory.h"

namespace ortkit::provider {

// Calls a callback that tells errors, unless it needs a Python that is gone.
template <class Callback>
ort::Status* Call(const Ep& ep, const char* name, const Callback& callback) {
  const PythonCall python(ep.definition->is_python());
  if (!python) return ep.Refuse(ort::kFail, kClosed);
  OrtkitError error;
  const int32_t code = callback(&error);
  return FromCallback(ep.api(), ep.definition->name, name, code, error);
}

}  // namespace ortkit::provider
